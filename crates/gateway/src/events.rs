//! The hits and misses that Turborepo reports after a build.

use serde::Deserialize;

fonn_base::label! {
    /// Where Turborepo looked, and whether it found the artifact.
    pub enum TurborepoEvent: "event" {
        /// In the directory of the machine, found.
        LocalHit = "local_hit",
        /// In the directory of the machine, not found.
        LocalMiss = "local_miss",
        /// Here, found.
        RemoteHit = "remote_hit",
        /// Here, not found.
        RemoteMiss = "remote_miss",
    }
}

#[derive(Deserialize)]
struct Event {
    source: String,
    event: String,
}

/// The events in a body; those of an unknown kind are left out. `None` if it is not a list of
/// events.
pub(crate) fn parse(body: &[u8]) -> Option<Vec<TurborepoEvent>> {
    let events: Vec<Event> = serde_json::from_slice(body).ok()?;
    let known = events
        .iter()
        .filter_map(|it| match (&*it.source, &*it.event) {
            ("LOCAL", "HIT") => Some(TurborepoEvent::LocalHit),
            ("LOCAL", "MISS") => Some(TurborepoEvent::LocalMiss),
            ("REMOTE", "HIT") => Some(TurborepoEvent::RemoteHit),
            ("REMOTE", "MISS") => Some(TurborepoEvent::RemoteMiss),
            _ => None,
        });
    Some(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_events_are_counted_and_others_are_left_out() {
        let body = br#"[{"sessionId":"s","source":"LOCAL","event":"MISS","hash":"h","duration":1},
                        {"source":"REMOTE","event":"HIT"},{"source":"MOON","event":"HIT"}]"#;
        let found = parse(body).unwrap();
        assert_eq!(
            found,
            [TurborepoEvent::LocalMiss, TurborepoEvent::RemoteHit]
        );
        assert_eq!(parse(b"[]").unwrap(), []);
        for malformed in [&b"{}"[..], b"", b"[1]", b"[{\"source\":1,\"event\":2}]"] {
            assert!(parse(malformed).is_none());
        }
    }
}
