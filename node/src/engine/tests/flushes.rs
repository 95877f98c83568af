//! Flushes that another member tells of.

use fonn_proto::peer;

use super::*;

const HOUR_S: u32 = 3600;

fn to_come(at_ms: u64) -> peer::Flush {
    peer::Flush {
        space: SPACE.0,
        cutoff: 0,
        at_ms,
    }
}

async fn adopt(rig: &Rig, flushes: &[peer::Flush]) {
    let adopted = rig.engine().adopt_flushes(flushes.to_vec()).await;
    adopted.unwrap();
}

fn times_to_come(rig: &Rig) -> Vec<u64> {
    let known = rig.engine().known_flushes().into_iter();
    known.map(|it| it.at_ms).filter(|it| *it != 0).collect()
}

#[tokio::test]
async fn of_two_flushes_to_come_the_earlier_one_counts() {
    let rig = Rig::new(Choice::default());
    let later = START_MS + 3_600_000;
    rig.engine().flush(&[SPACE], HOUR_S).await.unwrap();
    assert_eq!(times_to_come(&rig), [later]);
    adopt(&rig, &[to_come(later + 1)]).await;
    assert_eq!(times_to_come(&rig), [later]);
    adopt(&rig, &[to_come(START_MS + 60_000)]).await;
    assert_eq!(times_to_come(&rig), [START_MS + 60_000]);
}

#[tokio::test]
async fn a_later_flush_that_is_done_elsewhere_cancels_the_one_to_come_unless_it_is_told_too() {
    let rig = Rig::new(Choice::default());
    rig.set("old", b"v").await;
    rig.engine().flush(&[SPACE], HOUR_S).await.unwrap();
    let done = |cutoff| peer::Flush {
        space: SPACE.0,
        cutoff,
        at_ms: 0,
    };
    let first = rig.engine().ledger.hlc.next();
    let wanted = times_to_come(&rig);
    adopt(&rig, &[done(first), to_come(wanted[0])]).await;
    assert_eq!(times_to_come(&rig), wanted);
    assert_eq!(rig.get("old").await, None);
    // One that is known already tells nothing new.
    adopt(&rig, &[done(first)]).await;
    assert_eq!(times_to_come(&rig), wanted);
    rig.set("new", b"v").await;
    let second = rig.engine().ledger.hlc.next();
    adopt(&rig, &[done(second)]).await;
    assert_eq!(times_to_come(&rig), [0; 0]);
    assert_eq!(rig.get("new").await, None);
}
