//! A flush or purge by several members, with one cutoff.
//!
//! First each member hides its entries behind a version of its own clock, and reports that version.
//! The highest of them becomes the cutoff of all: no version below it is given any more. So every
//! write that was acknowledged before the flush is below the cutoff, at each member. Writes behind
//! the flush are above it, also for a member that was away and takes the cutoff from any of the
//! others. Writes during the flush are either.

use std::time::{Duration, Instant};

use fonn_proto::peer::{Reply, Request};
use fonn_proto::{Failure, Outcome, PurgeScope, Space, Version};
use fonn_rpc::Answer;
use futures_util::future::join_all;

use super::forward::envelope;
use super::upstream::Target;

/// How long a member may take: one that fell is known to be down by then, and the flush begins
/// again without it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// What a flush or purge hides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// All entries of these spaces.
    Spaces(Vec<Space>),
    /// What an identity wrote.
    Written(PurgeScope),
}

impl Hidden {
    /// What a request of a member hides, about `space`.
    #[must_use]
    pub fn of(space: Space, all_databases: bool, purge: Option<PurgeScope>) -> Self {
        match purge {
            Some(purge) => Self::Written(purge),
            None if all_databases => Self::Spaces(Space::of_namespace(space.namespace()).collect()),
            None => Self::Spaces(vec![space]),
        }
    }
}

/// One try of a flush or purge by several members.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    space: Space,
    all_databases: bool,
    purge: Option<PurgeScope>,
    deadline: Instant,
}

impl Flush {
    /// A flush of `space`, or of all databases of its namespace, that no client waits for after
    /// `deadline`.
    #[must_use]
    pub fn new(space: Space, all_databases: bool, deadline: Instant) -> Self {
        Self {
            space,
            all_databases,
            purge: None,
            deadline,
        }
    }

    /// A purge that no client waits for after `deadline`.
    #[must_use]
    pub fn of_purge(purge: PurgeScope, deadline: Instant) -> Self {
        Self {
            space: Space::default(),
            all_databases: false,
            purge: Some(purge),
            deadline,
        }
    }

    /// What is flushed or purged.
    #[must_use]
    pub fn hidden(&self) -> Hidden {
        Hidden::of(self.space, self.all_databases, self.purge)
    }

    /// Has members hide what they have; returns the highest version that a member drew for it, 0
    /// of none.
    ///
    /// # Errors
    /// [`Failure::Busy`] if one of them goes by another map than `targets` were taken from,
    /// [`Failure::Unavailable`] if one does not answer, or cannot keep it. Others may have done it.
    pub async fn begin(&self, targets: &[Target]) -> Result<Version, Failure> {
        let asked = targets.iter().map(|target| self.ask(target, None));
        let mut drawn = join_all(asked).await.into_iter();
        drawn.try_fold(0, |highest: Version, drawn| Ok(highest.max(drawn?)))
    }

    /// Has the same members agree to what all of them drew; returns once they keep it.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub async fn end(&self, targets: &[Target], cutoff: Version) -> Result<(), Failure> {
        let asked = targets.iter().map(|target| self.ask(target, Some(cutoff)));
        join_all(asked)
            .await
            .into_iter()
            .try_for_each(|kept| kept.map(drop))
    }

    async fn ask(&self, target: &Target, cutoff: Option<Version>) -> Result<Version, Failure> {
        let request = Request::Flush {
            all_databases: self.all_databases,
            cutoff,
            purge: self.purge,
        };
        let answer = self.call(target, &request).await?;
        match answer.reply() {
            Ok(Reply::Version(version)) => Ok(version),
            Ok(Reply::WrongOwner) => Err(Failure::Busy),
            Ok(Reply::Outcome(Outcome::Failed(failure))) => Err(failure),
            _ => Err(Failure::Unavailable),
        }
    }

    async fn call(&self, target: &Target, request: &Request<'_>) -> Result<Answer, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let envelope = envelope(0, self.space, target.epoch);
        let timeout = left.min(ANSWER_TIMEOUT);
        let call = target.client.call(request, envelope, None, timeout);
        let answer = call.await.map_err(|_| Failure::Unavailable)?;
        // By an older map it may not have moved its clock past a failed member's.
        match answer.head().envelope.epoch < target.epoch {
            true => Err(Failure::Busy),
            false => Ok(answer),
        }
    }
}
