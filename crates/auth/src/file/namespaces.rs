//! The namespaces of a users file: what their declarations, users and tokens say of each, brought
//! together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::duration::Span;
use fonn_base::size::ByteCount;
use toml::Spanned;

use super::oidc::RuleRow;
use super::{Fault, NamespaceRow, TokenRow, UserRow, checked_name};
use crate::checks::{check_base, check_inhabitable, check_name};
use crate::directory::{DEFAULT_NAMESPACE, Namespace, namespace_number};
use crate::placeholders::{claims_of, has_placeholders};

/// The shortest time that entries may live at most.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A user, a token or a rule, as far as its namespace goes.
pub(super) struct Inhabitant<'r> {
    name: &'r Spanned<String>,
    namespace: Option<&'r Spanned<String>>,
    terms: Option<Terms<'r>>,
    /// Whether it may be in a namespace that has many overlays.
    may_have_overlay: bool,
}

/// What a row says of its namespace.
#[derive(Clone, Copy)]
struct Terms<'r> {
    base: Option<&'r Spanned<String>>,
    quota: Option<&'r Spanned<ByteCount>>,
}

impl<'r> Inhabitant<'r> {
    pub fn user(row: &'r UserRow) -> Self {
        Self {
            name: &row.name,
            namespace: row.namespace.as_ref(),
            terms: Some(Terms {
                base: row.base.as_ref(),
                quota: row.quota.as_ref(),
            }),
            may_have_overlay: false,
        }
    }

    /// A token takes its namespace as others describe it.
    pub fn token(row: &'r TokenRow) -> Self {
        Self {
            name: &row.name,
            namespace: row.namespace.as_ref(),
            terms: None,
            may_have_overlay: false,
        }
    }

    /// So do the tokens that a rule lets an issuer's identities have.
    pub fn rule(row: &'r RuleRow) -> Self {
        Self {
            name: &row.name,
            namespace: row.namespace.as_ref(),
            terms: None,
            may_have_overlay: true,
        }
    }

    pub fn namespace_name(&self) -> &'r str {
        self.namespace
            .map_or(DEFAULT_NAMESPACE, |name| name.get_ref())
    }
}

/// What is known of one namespace while rows are read.
#[derive(Clone, Copy, Default)]
struct Draft<'r> {
    is_declared: bool,
    /// Inner none: it has no base.
    base: Option<Option<&'r Spanned<String>>>,
    quota: Option<ByteCount>,
    is_write_once: bool,
    ttl: Option<Duration>,
}

impl<'r> Draft<'r> {
    fn base_name(&self) -> Option<&'r str> {
        self.base.flatten().map(|base| base.get_ref().as_str())
    }
}

/// The namespaces that are declared, or that a user or a token is in, by name.
pub(super) fn namespaces<'r>(
    declared: &'r [NamespaceRow],
    inhabitants: &[Inhabitant<'r>],
) -> Result<HashMap<&'r str, Arc<Namespace>>, Fault> {
    let mut drafts: HashMap<&str, Draft<'_>> = HashMap::new();
    let mut numbers = Numbers::default();
    for row in declared {
        let name = numbers.take(Some(&row.name))?;
        let draft = Draft {
            is_declared: true,
            base: Some(row.base.as_ref()),
            quota: row.quota.as_ref().map(|quota| *quota.get_ref()),
            is_write_once: row.write_once,
            ttl: row.ttl.as_ref().map(checked_ttl).transpose()?,
        };
        if has_placeholders(name) {
            check_overlays(name, &draft, &row.name)?;
        }
        if drafts.insert(name, draft).is_some() {
            let message = format!("the namespace `{name}` is declared twice");
            return Err(Fault::at(&row.name, message));
        }
    }
    for it in inhabitants {
        let name = numbers.take(it.namespace)?;
        if let Some(at) = it.namespace.filter(|_| has_placeholders(name)) {
            if !it.may_have_overlay {
                check_inhabitable(name).map_err(|why| Fault::at(at, why))?;
            }
            if !drafts.contains_key(name) {
                let message = format!(
                    "the namespace `{name}` has a placeholder: declare it in a [[namespace]] table with its `base` and `ttl`"
                );
                return Err(Fault::at(at, message));
            }
        }
        let draft = drafts.entry(name).or_default();
        if let Some(terms) = it.terms {
            agree(draft, terms, name, it.name)?;
        }
    }
    for (name, draft) in &drafts {
        if let Some(base) = draft.base.flatten() {
            let third = drafts.get(base.get_ref().as_str()).map(Draft::base_name);
            let checked = check_base(name, base.get_ref(), third);
            checked.map_err(|why| Fault::at(base, why))?;
        }
    }
    let namespaces = drafts.iter().map(|(&name, draft)| {
        let namespace = Namespace {
            name: name.into(),
            number: namespace_number(name),
            base: draft.base_name().map(namespace_number),
            quota: draft.quota,
            is_write_once: draft.is_write_once,
            ttl: draft.ttl,
        };
        (name, Arc::new(namespace))
    });
    Ok(namespaces.collect())
}

/// Which namespace has which number.
#[derive(Default)]
struct Numbers<'r>(HashMap<u32, &'r str>);

impl<'r> Numbers<'r> {
    /// The name of a namespace, which no other one shares its number with.
    fn take(&mut self, named: Option<&'r Spanned<String>>) -> Result<&'r str, Fault> {
        let name = match named {
            None => DEFAULT_NAMESPACE,
            Some(spanned) => checked_name(
                |name| {
                    check_name("namespace", name)?;
                    claims_of(name).map(drop)
                },
                spanned,
            )?,
        };
        let other = *self.0.entry(namespace_number(name)).or_insert(name);
        if other == name {
            return Ok(name);
        }
        Err(Fault::new(
            named.map_or(0, |name| name.span().start),
            format!(
                "the namespaces `{other}` and `{name}` have the same number; rename one of them"
            ),
        ))
    }
}

/// Takes what the row of the user at `at` says of the namespace `name`. Where the namespace is
/// declared, a user may leave out what the declaration says.
fn agree<'r>(
    draft: &mut Draft<'r>,
    terms: Terms<'r>,
    name: &str,
    at: &Spanned<String>,
) -> Result<(), Fault> {
    let base = terms.base.map(|base| base.get_ref().as_str());
    let is_silent = draft.is_declared && base.is_none();
    if !is_silent && draft.base.is_some() && draft.base_name() != base {
        return Err(Fault::at(
            at,
            format!(
                "the users of namespace `{name}` differ in `base`; it belongs to the namespace, so say the same in each"
            ),
        ));
    }
    draft.base.get_or_insert(terms.base);
    if let Some(quota) = terms.quota
        && *draft.quota.get_or_insert(*quota.get_ref()) != *quota.get_ref()
    {
        return Err(Fault::at(
            quota,
            format!(
                "the users of namespace `{name}` differ in `quota`; it belongs to the namespace, so say it once"
            ),
        ));
    }
    Ok(())
}

/// How long entries live at most. A shorter time than a second would be an error in the unit.
fn checked_ttl(ttl: &Spanned<Span>) -> Result<Duration, Fault> {
    let span = ttl.get_ref().get();
    match span >= TTL_MIN {
        true => Ok(span),
        false => Err(Fault::at(ttl, "`ttl`: expected 1s or more, like 7d")),
    }
}

/// A namespace with placeholders has as many overlays as there are values. So each has to read
/// something, and to end.
fn check_overlays(name: &str, draft: &Draft<'_>, at: &Spanned<String>) -> Result<(), Fault> {
    let missing = match (draft.base.flatten(), draft.ttl) {
        (None, _) => "`base`: name the namespace that its overlays read",
        (_, None) => "`ttl`: say how long an entry of its overlays lives at most, like \"7d\"",
        _ => return Ok(()),
    };
    let message = format!("the namespace `{name}` has a placeholder and no {missing}");
    Err(Fault::at(at, message))
}
