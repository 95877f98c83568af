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

/// Tells one member what another knows, as their pings do.
fn tell(from: &Rig, to: &Rig) {
    let newest = from.engine().versions().newest();
    to.engine().versions().observe(newest).unwrap();
}

#[tokio::test]
async fn a_flush_hides_what_a_member_wrote_by_a_clock_that_was_ahead_before_it_fell() {
    let (mut fallen, other) = (Rig::new(Choice::default()), Rig::new(Choice::default()));
    fallen.clock.set_wall_ms(START_MS + 7000);
    fallen.set("before", b"v").await;
    tell(&fallen, &other);
    // Killed and started again, it begins where it had reserved.
    fallen.drop_and_open();
    fallen.set("ahead", b"v").await;
    other.engine().pass_fallen();
    other.engine().flush(&[SPACE], 0).await.unwrap();
    other.set("after", b"v").await;
    adopt(&fallen, &other.engine().known_flushes()).await;
    assert_eq!(
        (fallen.get("before").await, fallen.get("ahead").await),
        (None, None)
    );
    assert_eq!(other.get("after").await.unwrap(), b"v");
}
