//! Where results go: text for people, or JSON.

use std::io::{self, StdoutLock, Write as _};

use serde::Serialize;

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
