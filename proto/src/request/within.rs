//! Requests that outlive their parser's next call.
//!
//! A request borrows from the bytes that it was parsed from, and in rare cases from its parser: a
//! key in base64, an argument with escapes, the state of the connection. Where it borrows from the
//! bytes alone, its parts are found again in them, and it can be kept while the next requests are
//! parsed.

use super::Reply;
use crate::command::{Arith, Command, Delete, Get, SetBit, SetRange, Store, Touch};

/// `part` as a part of `buf`; None if it lies elsewhere.
pub(crate) fn relocate<'b>(part: &[u8], buf: &'b [u8]) -> Option<&'b [u8]> {
    if part.is_empty() {
        return Some(&[]);
    }
    let start = (part.as_ptr() as usize).checked_sub(buf.as_ptr() as usize)?;
    buf.get(start..start.checked_add(part.len())?)
}

impl Command<'_> {
    /// The same command for as long as `buf` lives; None if not all it borrows lies in `buf`.
    #[must_use]
    pub fn within<'b>(&self, buf: &'b [u8]) -> Option<Command<'b>> {
        let key = relocate(self.key(), buf)?;
        Some(match *self {
            Self::Get(ref get) => Command::Get(Get { key, ..*get }),
            Self::Store(ref store) => Command::Store(Store {
                key,
                value: relocate(store.value, buf)?,
                ..*store
            }),
            Self::Arith(ref arith) => Command::Arith(Arith { key, ..*arith }),
            Self::Delete(ref delete) => Command::Delete(Delete { key, ..*delete }),
            Self::Touch(ref touch) => Command::Touch(Touch { key, ..*touch }),
            Self::SetRange(ref range) => Command::SetRange(SetRange {
                key,
                offset: range.offset,
                value: relocate(range.value, buf)?,
            }),
            Self::SetBit(ref bit) => Command::SetBit(SetBit { key, ..*bit }),
        })
    }
}

impl Reply<'_> {
    /// The same reply, as far as it was worded, for as long as `buf` lives; None if not all it
    /// borrows lies in `buf`. Go on with one of the two, not with both.
    #[must_use]
    pub fn within<'b>(&self, buf: &'b [u8]) -> Option<Reply<'b>> {
        Some(match self {
            Self::Text(reply) => Reply::Text(reply.clone()),
            Self::Meta(reply) => Reply::Meta(reply.within(buf)?),
            Self::Binary(reply) => Reply::Binary(reply.within(buf)?),
            Self::Resp(reply) => Reply::Resp(reply.detach()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::request::{Body, Limits, Step};
    use crate::session::{Dialect, Session};
    use crate::{Out, Outcome};

    const LIMITS: Limits = Limits {
        value_len_max: 1 << 20,
    };

    /// Whether the request can be kept; if so its words are the same afterwards.
    #[track_caller]
    fn is_kept(dialect: Dialect, bytes: &[u8]) -> bool {
        let mut session = Session::new(dialect, LIMITS, 1);
        let Step::Request { request, .. } = session.parse(bytes) else {
            panic!("no request");
        };
        let mut reply = request.reply;
        let Body::Data(commands) = &request.body else {
            return reply.within(bytes).is_some();
        };
        let kept_commands: Option<Vec<_>> = commands.iter().map(|it| it.within(bytes)).collect();
        let (Some(mut kept), Some(kept_commands)) = (reply.within(bytes), kept_commands) else {
            return false;
        };
        let (mut out, mut kept_out) = (Out::new(), Out::new());
        for (command, kept_command) in commands.iter().zip(&kept_commands) {
            assert_eq!(command, kept_command);
            reply.each(command, &Outcome::NotFound, &mut out);
            kept.each(kept_command, &Outcome::NotFound, &mut kept_out);
        }
        reply.finish(&mut out);
        kept.finish(&mut kept_out);
        assert_eq!(out.to_vec(), kept_out.to_vec());
        true
    }

    #[test]
    fn requests_are_kept_that_lie_in_their_bytes_as_a_whole() {
        for text in [
            &b"get a bc\r\n"[..],
            b"gets a\r\n",
            b"set k 1 0 3\r\nabc\r\n",
            b"add k 1 0 0\r\n\r\n",
            b"incr k 1 noreply\r\n",
            b"mg k v t O1234 k\r\n",
            b"ms k 2 I q\r\nab\r\n",
            b"md k q\r\n",
            b"ma k\r\n",
            b"delete k\r\n",
            b"touch k 1\r\n",
        ] {
            assert!(is_kept(Dialect::Text, text), "{}", text.escape_ascii());
        }
        for words in [
            "GET k",
            "MGET a b c",
            "DEL a b",
            "MSET a 1 b 2",
            "SET k v EX 5 GET",
            "GETRANGE k 0 1",
            "SETRANGE k 1 xx",
            "INCRBY k 3",
            "EXPIRE k 3",
            "TYPE k",
        ] {
            let args: Vec<_> = words.split(' ').collect();
            let mut resp = format!("*{}\r\n", args.len());
            for arg in args {
                resp.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
            }
            assert!(is_kept(Dialect::Resp, resp.as_bytes()), "{words}");
        }
        // GETKQ k
        let mut binary = vec![0x80, 0x0d, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        binary.extend_from_slice(&[7; 12]);
        binary.push(b'k');
        assert!(is_kept(Dialect::Binary, &binary));
    }

    #[test]
    fn requests_with_parts_in_the_parser_are_not_kept() {
        assert!(!is_kept(Dialect::Text, b"mg Zm9v b v\r\n"));
        // Words of a line may have to be unquoted, so the parser copies them all.
        assert!(!is_kept(Dialect::Resp, b"GET k\r\n"));
        assert!(!is_kept(Dialect::Resp, b"CLIENT INFO\r\n"));
        assert!(!is_kept(Dialect::Resp, b"HELLO 3\r\n"));
    }
}
