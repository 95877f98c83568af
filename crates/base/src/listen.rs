//! What is said of an address at which a program cannot listen. It is the same for all ports; the
//! caller names the flag.

use std::fmt::Display;
use std::io;

/// The error with the address in its message, and the remedy if the address is in use.
pub fn cannot_listen(address: impl Display, error: &io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the address is in use; stop the process that has it, or give another address"
                .to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("cannot listen on {address}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_named_with_the_remedy_and_other_errors_in_the_words_of_the_system() {
        let in_use = cannot_listen("h:1", &io::ErrorKind::AddrInUse.into());
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
        let text = in_use.to_string();
        assert!(text.starts_with("cannot listen on h:1: "), "{text}");
        assert!(text.contains("give another address"), "{text}");
        let other = cannot_listen("h:1", &io::Error::other("no such name")).to_string();
        assert_eq!(other, "cannot listen on h:1: no such name");
    }
}
