//! A device that does not answer.

use super::*;

#[test]
fn a_write_that_waits_for_the_device_is_seen_until_it_ends() {
    let rig = Rig::with(|options| options.durability = Durability::Fsync);
    let device = rig.tier().device();
    let newest = rig.shared().generations.newest().unwrap();
    let stalled = newest.log.hold_syncs();
    let value = Bytes::from_static(b"value");
    let write = Write {
        space: SPACE,
        key: Bytes::from_static(b"key"),
        kind: WriteKind::Put {
            meta: Meta::new(1, 7, 0),
            value,
        },
        ack: None,
    };
    assert!(rig.tier().try_write(write).is_ok());
    let deadline = Instant::now() + GRACE;
    while !device.has_waited(Duration::from_millis(20)) {
        assert!(Instant::now() < deadline, "did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(stalled);
    rig.tier().barrier_blocking();
    assert!(!device.has_waited(Duration::ZERO));
}
