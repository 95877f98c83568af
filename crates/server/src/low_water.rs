//! When the kernel says that there is something to read: after so many bytes, instead of the first
//! (socket(7), `SO_RCVLOWAT`).
//!
//! A client that sends a value of megabytes from the same machine or a fast network would otherwise
//! have its reactor woken for each few packets of it. Sets of 1 MiB took a tenth more of the
//! server's processor time, and a third more of the clock, than with it.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// What is waited for in the middle of a large request: enough to be worth a wake, and less than
/// the kernel keeps for a fast sender. The kernel makes the receive buffer twice as large where it
/// is smaller, and tells earlier of what there is when it has no memory for more.
pub(super) const LOW_WATER: usize = 384 * 1024;

/// Has readers of `socket` woken when `bytes` are there to read, or its end is; now, if they are
/// there already. Reading takes less as ever.
///
/// # Errors
/// What the kernel says.
pub(super) fn set(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: the descriptor is open as long as it is borrowed; the option's value is one `int`,
    // which is read from a local variable that outlives the call, and whose size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            std::ptr::from_ref(&bytes).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
