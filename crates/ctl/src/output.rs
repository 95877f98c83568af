//! Where results go: text for people, or JSON.

use std::io::{self, StdoutLock, Write as _};

use serde::Serialize;

use super::table::printable;

/// An answer, and the member that it is of where several were asked.
#[derive(Debug, Serialize)]
pub(super) struct Of<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    #[serde(flatten)]
    pub answer: T,
}

impl<T> Of<T> {
    pub(super) fn new(member: Option<&str>, answer: T) -> Self {
        Self {
            member: member.map(str::to_owned),
            answer,
        }
    }

    /// The text of the answer, below the name of the member if there is one.
    pub(super) fn headed(&self, render: impl FnOnce(&T) -> String) -> String {
        let text = render(&self.answer);
        match &self.member {
            Some(member) => format!("member {}\n{text}", printable(member)),
            None => text,
        }
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
