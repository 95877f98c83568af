//! How fields that are numbers or bytes on the wire read in JSON. (Tested where JSON is written:
//! fonnctl.)

use serde::Serializer;

use super::v1::{
    EventLevel, MemberState, Role, SegmentState, SettingOrigin, Severity, Tier, UserSource, WarmEnd,
};

/// `TIER_RAM` as `ram`.
fn bare(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_ascii_lowercase()
}

impl Tier {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "TIER_")
    }
}

impl Severity {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "SEVERITY_")
    }
}

impl SegmentState {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "SEGMENT_STATE_")
    }
}

impl WarmEnd {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "WARM_END_")
    }
}

impl EventLevel {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "EVENT_LEVEL_")
    }
}

impl MemberState {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "MEMBER_STATE_")
    }
}

impl Role {
    /// Its name in tables and JSON, as in a users file.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "ROLE_").replace('_', "-")
    }
}

impl UserSource {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "USER_SOURCE_")
    }
}

impl SettingOrigin {
    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        bare(self.as_str_name(), "SETTING_ORIGIN_")
    }
}

/// A number that this version does not know is from a newer peer: it goes out as it is.
fn or_number<S: Serializer>(name: Option<String>, value: i32, to: S) -> Result<S::Ok, S::Error> {
    match name {
        Some(name) => to.serialize_str(&name),
        None => to.serialize_i32(value),
    }
}

pub(super) fn tier<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    or_number(Tier::try_from(*value).ok().map(Tier::name), *value, to)
}

pub(super) fn role<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    or_number(Role::try_from(*value).ok().map(Role::name), *value, to)
}

pub(super) fn user_source<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = UserSource::try_from(*value).ok().map(UserSource::name);
    or_number(name, *value, to)
}

pub(super) fn severity<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = Severity::try_from(*value).ok().map(Severity::name);
    or_number(name, *value, to)
}

pub(super) fn segment_state<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = SegmentState::try_from(*value).ok().map(SegmentState::name);
    or_number(name, *value, to)
}

pub(super) fn warm_end<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = WarmEnd::try_from(*value).ok().map(WarmEnd::name);
    or_number(name, *value, to)
}

pub(super) fn event_level<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = EventLevel::try_from(*value).ok().map(EventLevel::name);
    or_number(name, *value, to)
}

pub(super) fn member_state<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = MemberState::try_from(*value).ok().map(MemberState::name);
    or_number(name, *value, to)
}

pub(super) fn setting_origin<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    let name = SettingOrigin::try_from(*value)
        .ok()
        .map(SettingOrigin::name);
    or_number(name, *value, to)
}

pub(super) fn text<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&String::from_utf8_lossy(bytes))
}
