//! Once a thread's workspaces exist and its buffers have grown, nothing is allocated.

#[path = "frame/corpora.rs"]
#[allow(dead_code)]
mod corpora;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fonn_codec::{CodecSpec, Frame, encode, registry};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator unchanged; counting touches no memory of its own
// (the thread-local is constant-initialized and needs no destructor).
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_in_steady_state() {
    let specs: Vec<CodecSpec> = registry::all()
        .iter()
        .filter(|codec| codec.is_available())
        .flat_map(|codec| {
            let levels = codec.levels().map_or(vec![None], |levels| {
                vec![
                    Some(levels.min),
                    Some(levels.default),
                    Some(levels.max.min(9)),
                ]
            });
            levels
                .into_iter()
                .map(|level| CodecSpec::new(codec, level).unwrap())
        })
        .collect();
    let values: Vec<Vec<u8>> = [100, 1000, 16 << 10, 100 << 10, 300 << 10]
        .into_iter()
        .flat_map(|len| {
            [
                corpora::text(len),
                corpora::random(len),
                corpora::precompressed(len),
            ]
        })
        .collect();
    let (mut stored, mut value) = (Vec::new(), Vec::new());
    let mut round = || {
        for raw in &values {
            for &spec in &specs {
                stored.clear();
                encode(spec, 256, raw, &mut stored).unwrap();
                let frame = Frame::parse(&stored, 1 << 20).unwrap();
                frame.verify().unwrap();
                frame.decode_into(&mut value).unwrap();
                assert!(value == *raw);
            }
        }
    };
    round();
    let before = ALLOCATIONS.get();
    assert!(before > 0, "the counter counts");
    round();
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
