//! How fields that are numbers or bytes on the wire read in JSON. (Tested where JSON is written:
//! fonnctl.)

use serde::Serializer;

use super::v1::{
    EventLevel, MemberState, Role, SegmentState, SettingOrigin, Severity, Tier, UserSource, WarmEnd,
};

/// `TIER_RAM` as `ram`.
fn bare(name: &str, prefix: &str, gap: &str) -> String {
    let name = name.strip_prefix(prefix).unwrap_or(name);
    name.to_ascii_lowercase().replace('_', gap)
}

/// A number that this version does not know is from a newer peer: it goes out as it is.
fn or_number<S: Serializer>(name: Option<String>, value: i32, to: S) -> Result<S::Ok, S::Error> {
    match name {
        Some(name) => to.serialize_str(&name),
        None => to.serialize_i32(value),
    }
}

/// What an enumeration has before its names, what stands between their words, and how a field of it
/// is written.
macro_rules! names {
    ($($kind:ident, $prefix:literal, $gap:literal, $field:ident;)+) => {$(
        impl $kind {
            /// Its name in tables and JSON.
            #[must_use]
            pub fn name(self) -> String {
                bare(self.as_str_name(), $prefix, $gap)
            }
        }

        pub(super) fn $field<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
            or_number($kind::try_from(*value).ok().map($kind::name), *value, to)
        }
    )+};
}

names! {
    EventLevel, "EVENT_LEVEL_", "_", event_level;
    MemberState, "MEMBER_STATE_", "_", member_state;
    // As in a users file.
    Role, "ROLE_", "-", role;
    SegmentState, "SEGMENT_STATE_", "_", segment_state;
    SettingOrigin, "SETTING_ORIGIN_", "_", setting_origin;
    Severity, "SEVERITY_", "_", severity;
    Tier, "TIER_", "_", tier;
    UserSource, "USER_SOURCE_", "_", user_source;
    WarmEnd, "WARM_END_", "_", warm_end;
}

pub(super) fn text<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&String::from_utf8_lossy(bytes))
}
