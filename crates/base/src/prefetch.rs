//! Asks the processor for memory that will be read soon.

#![allow(unsafe_code)]

/// Has the processor fetch the line of its cache that `place` begins in. It goes on meanwhile.
/// Nothing happens on machines without such an instruction.
#[inline]
pub fn prefetch<T: ?Sized>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is part of every x86-64 processor (SSE). It changes no state that
        // a program can see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(place).cast()) }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let at = core::ptr::from_ref(place).cast::<u8>();
        // SAFETY: as above. PRFM touches neither flags nor the stack.
        unsafe {
            core::arch::asm!(
                "prfm pldl1keep, [{at}]",
                at = in(reg) at,
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}
