use super::*;
use crate::sharing::tests::maps::{map, member, placed};

fn sources() -> BySource {
    let some: SlotSet = [0, 5, 16_383].into_iter().collect();
    BySource::from([
        ((Arc::from("a"), false), some.clone()),
        ((Arc::from("a"), true), [7].into_iter().collect()),
        ((Arc::from("c"), true), some),
    ])
}

#[test]
fn the_map_and_the_sources_outlive_a_restart() {
    use MemberState::{Active, Down, Draining, Joining};
    let dir = tempfile::tempdir().unwrap();
    assert!(load(dir.path()).is_none());
    for replicas in 1..=3 {
        for states in [
            [Active, Active, Active, Active],
            [Active, Down, Draining, Joining],
        ] {
            let rows = ["a", "b", "c", "d"].iter().zip(states).enumerate();
            let rows = rows.map(|(at, (id, state))| Member {
                zone: format!("z{}", at % 2),
                weight: 100,
                ..member(id, state, 100 + at as u32)
            });
            let map = placed(9, replicas, rows.collect()).unwrap();
            save(dir.path(), &map, &sources()).unwrap();
            let noted = load(dir.path()).unwrap();
            assert_eq!(noted.map, Some(map));
            assert_eq!((noted.epoch, noted.sources), (9, sources()));
        }
    }
    let holdings = Holdings::of_sources(9, None, "e", &sources());
    assert_eq!((holdings.sources(), holdings.epoch()), (sources(), 9));
    let of_slot = &holdings.get(5).unwrap().sources;
    assert!(of_slot.len() == 2 && of_slot.iter().all(|it| !it.is_asked));
}

#[test]
fn what_a_later_version_adds_is_passed_over_and_what_is_damaged_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let map = map(9, 1, &[("a", MemberState::Active)]);
    save(dir.path(), &map, &sources()).unwrap();
    let path = dir.path().join(FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let later = text.replacen("{\"layout\"", "{\"more\":[1],\"layout\"", 1);
    let later = later.replacen("{\"member\"", "{\"more\":1,\"member\"", 1);
    assert_ne!(later, text);
    std::fs::write(&path, later).unwrap();
    assert_eq!(load(dir.path()).unwrap().sources, sources());
    for damaged in [
        &text.as_bytes()[..text.len() / 2],
        text.replace("\"layout\":1", "\"layout\":2").as_bytes(),
        text.replacen("\"slots\":\"", "\"slots\":\"0", 1).as_bytes(),
        b"",
    ] {
        std::fs::write(&path, damaged).unwrap();
        assert!(load(dir.path()).is_none());
    }
    // Unknown owners are no reason to forget the members to ask.
    let nobody = text.replace("\"share\":100", "\"share\":0");
    std::fs::write(&path, nobody).unwrap();
    let noted = load(dir.path()).unwrap();
    assert_eq!((noted.map, noted.sources), (None, sources()));
}

#[test]
fn what_cannot_be_noted_is_tried_again_and_what_was_noted_stays() {
    let dir = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    notes.dir.set(dir.path().to_owned()).unwrap();
    let map = |epoch| map(epoch, 1, &[("a", MemberState::Active)]);
    let epoch = || load(dir.path()).map(|it| it.epoch);
    notes.save(&map(3), &sources());
    std::fs::create_dir(dir.path().join("sources.new")).unwrap();
    notes.save(&map(4), &BySource::new());
    assert_eq!(epoch(), Some(3));
    std::fs::remove_dir(dir.path().join("sources.new")).unwrap();
    notes.save(&map(4), &BySource::new());
    assert_eq!(epoch(), Some(4));
    // What is known by an older map comes too late.
    notes.save(&map(3), &sources());
    let noted = load(dir.path()).unwrap();
    assert_eq!((noted.epoch, noted.sources), (4, BySource::new()));
}
