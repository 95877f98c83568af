//! Where results go: text for people, or JSON.

use std::io::{self, StdoutLock, Write as _};

use serde::Serialize;

use super::table::printable;

/// An answer, and the member that it is of: where several were asked.
#[derive(Debug, Serialize)]
pub(super) struct Of<T> {
    pub member: String,
    #[serde(flatten)]
    pub answer: T,
}

impl<T> Of<T> {
    pub(super) fn new(member: &str, answer: T) -> Self {
        Self {
            member: member.to_owned(),
            answer,
        }
    }

    /// The text of the answer below the name of the member.
    pub(super) fn headed(&self, render: impl FnOnce(&T) -> String) -> String {
        let text = render(&self.answer);
        format!("member {}\n{text}", printable(&self.member))
    }
}

/// Standard output in one of the two forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    json: bool,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(super) fn is_json(self) -> bool {
        self.json
    }

    pub(super) fn lock(self) -> StdoutLock<'static> {
        io::stdout().lock()
    }

    /// Shows an answer: as one line of JSON, or as the text that `render` makes of it.
    pub(super) fn show<T: Serialize>(
        self,
        answer: &T,
        render: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        let mut out = self.lock();
        if self.json {
            serde_json::to_writer(&mut out, answer)?;
            writeln!(out)?;
        } else {
            out.write_all(render(answer).as_bytes())?;
        }
        out.flush()
    }
}
