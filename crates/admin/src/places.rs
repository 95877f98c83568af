//! The places of the admin port: which connection gives up its own when all are taken.
//!
//! The port accepts every connection. When it is full, the source with the most connections gives
//! up its oldest connection that carries no admitted call. A probe therefore gets in however many
//! connections a stranger keeps open, and a source with few connections loses none.
//!
//! A burst of connections from the source of a probe would take the probe's place before the port
//! has read its request. So no connection gives up its place in its first moment ([`GRACE`]): the
//! next connection waits in the backlog of the system for as long.
//!
//! Invariant: at most `max` connections; a connection with an admitted call keeps its place.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::calls::Calls;

/// Above this share of the places HTTP/1.1 connections end after their response.
const CROWDED_NUMERATOR: usize = 3;
const CROWDED_DENOMINATOR: usize = 4;

/// How long every connection keeps its place. A client on a busy machine asks within it, and a
/// flood of silent connections still moves on by `max` connections in this time.
const GRACE: Duration = Duration::from_millis(100);

/// The network of a source: an IPv6 customer has a /64, so a /64 is one source.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

/// A connection that has a place; `H` ends it.
#[derive(Debug)]
struct Place<H> {
    network: IpAddr,
    calls: Calls,
    since: Instant,
    handle: H,
}

/// The connections of the port, oldest first.
#[derive(Debug)]
pub(super) struct Places<H> {
    max: usize,
    taken: Vec<Place<H>>,
}

impl<H> Places<H> {
    /// Places for `max` connections.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            taken: Vec::with_capacity(max),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Makes room for one connection. Returns the handle of the connection that gives up its place,
    /// if all places are taken.
    ///
    /// # Errors
    /// If all places are taken by connections with calls.
    pub(super) fn make_room(&mut self) -> Result<Option<H>, Full> {
        if self.taken.len() < self.max {
            return Ok(None);
        }
        let at = self.victim().ok_or(Full)?;
        Ok(Some(self.taken.remove(at).handle))
    }

    /// How long the next connection has to wait, so that the connection that would give up its
    /// place has had it for long enough.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        if self.taken.len() < self.max {
            return None;
        }
        let victim = self.taken.get(self.victim()?)?;
        let left = GRACE.saturating_sub(now.saturating_duration_since(victim.since));
        (!left.is_zero()).then_some(left)
    }

    /// The oldest connection without calls of the source that has most.
    fn victim(&self) -> Option<usize> {
        let mut count: HashMap<IpAddr, usize> = HashMap::new();
        for place in &self.taken {
            *count.entry(place.network).or_default() += 1;
        }
        let idle = self.taken.iter().enumerate();
        let idle = idle.filter(|(_, place)| !place.calls.are_under_way());
        // The last maximum would be the newest; in reverse it is the oldest.
        let victim = idle
            .rev()
            .max_by_key(|(_, place)| count.get(&place.network));
        victim.map(|(at, _)| at)
    }

    /// Gives a connection from `address` a place at the time `now`.
    pub(super) fn take(&mut self, address: IpAddr, calls: Calls, now: Instant, handle: H) {
        self.taken.push(Place {
            network: network_of(address),
            calls,
            since: now,
            handle,
        });
    }

    /// Frees the place of a connection that has ended.
    pub(super) fn free(&mut self, is_it: impl Fn(&H) -> bool) {
        self.taken.retain(|place| !is_it(&place.handle));
    }
}

/// Every place is taken by a connection with calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Whether so many connections are so near the limit that HTTP/1.1 connections must not wait for
/// more requests.
pub(super) fn is_crowded(open: usize, max: usize) -> bool {
    open.saturating_mul(CROWDED_DENOMINATOR) >= max.saturating_mul(CROWDED_NUMERATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// Connects from these addresses in turn; returns the connection that gave up a place for each.
    fn connect(places: &mut Places<usize>, from: &[IpAddr]) -> Vec<Option<usize>> {
        let mut gave_up = Vec::new();
        for &address in from {
            gave_up.push(places.make_room().unwrap());
            let next = places.taken.iter().map(|it| it.handle).max();
            places.take(
                address,
                Calls::new(),
                Instant::now(),
                next.map_or(0, |it| it + 1),
            );
        }
        gave_up
    }

    #[test]
    fn the_oldest_connection_of_the_largest_source_gives_up_its_place() {
        let mut places = Places::new(4);
        let gave_up = connect(&mut places, &[PROBE, STRANGER, STRANGER, STRANGER]);
        assert_eq!(gave_up, [None; 4]);
        assert_eq!(connect(&mut places, &[STRANGER; 2]), [Some(1), Some(2)]);
        // The probe has one connection, the stranger three: the probe keeps its own and gets
        // another.
        assert_eq!(connect(&mut places, &[PROBE]), [Some(3)]);
        assert_eq!(places.len(), 4);
    }

    #[test]
    fn a_connection_with_a_call_keeps_its_place() {
        let mut places = Places::new(2);
        let calls = [Calls::new(), Calls::new()];
        for (handle, calls) in calls.iter().enumerate() {
            places.take(STRANGER, calls.clone(), Instant::now(), handle);
        }
        let first = calls[0].begin();
        assert_eq!(places.make_room(), Ok(Some(1)));
        places.take(STRANGER, calls[1].clone(), Instant::now(), 1);
        let second = calls[1].begin();
        assert_eq!(places.make_room(), Err(Full));
        drop((first, second));
        assert_eq!(places.make_room(), Ok(Some(0)));
    }

    #[test]
    fn a_connection_keeps_its_place_for_a_moment() {
        let (mut places, start) = (Places::new(2), Instant::now());
        places.take(STRANGER, Calls::new(), start, 0);
        assert_eq!(places.wait(start), None);
        let later = start + GRACE / 2;
        places.take(STRANGER, Calls::new(), later, 1);
        assert_eq!(places.wait(later), Some(GRACE / 2));
        assert_eq!(places.wait(start + GRACE), None);
        assert_eq!(places.make_room(), Ok(Some(0)));
        places.take(STRANGER, Calls::new(), start + GRACE, 2);
        assert_eq!(places.wait(start + GRACE), Some(GRACE / 2));
        // A connection with calls is not waited for: it keeps its place in any case.
        let calls = Calls::new();
        places.free(|handle| *handle == 1);
        places.take(STRANGER, calls.clone(), start, 3);
        let _call = calls.begin();
        assert_eq!(places.wait(start + GRACE), Some(GRACE));
    }

    #[test]
    fn an_ended_connection_frees_its_place() {
        let mut places = Places::new(1);
        places.take(PROBE, Calls::new(), Instant::now(), 7);
        places.free(|handle| *handle == 7);
        assert_eq!(places.make_room(), Ok(None));
    }

    #[test]
    fn a_customer_of_ipv6_is_one_source() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
    }

    #[test]
    fn three_quarters_are_a_crowd() {
        assert!(!is_crowded(47, 64));
        assert!(is_crowded(48, 64));
        assert!(is_crowded(1, 1));
    }
}
