//! The build tools that figures tell apart.

fonn_base::label! {
    /// A kind of client of the port for build tools.
    pub enum Tool: "tool" {
        /// Values under any path, of none of the tools that are told apart by their name.
        Generic = "generic",
        /// sccache over WebDAV.
        Sccache = "sccache",
        /// ccache, also by the storage helper.
        Ccache = "ccache",
        /// The go command by its helper.
        Go = "go",
        /// Bazel, moon and others over HTTP.
        Bazel = "bazel",
        /// Gradle, Rush.
        Gradle = "gradle",
        /// Maven's build cache extension.
        Maven = "maven",
        /// Nx.
        Nx = "nx",
        /// Turborepo.
        Turborepo = "turborepo",
        /// The cache of GitHub Actions.
        Actions = "actions",
        /// Bazel, Buck2, Pants, moon and others over gRPC.
        RemoteExecution = "remote_execution",
    }
}

impl Tool {
    /// The tool of a client that calls itself so, where the path tells none.
    pub(crate) fn of_agent(agent: &[u8]) -> Self {
        const NAMES: [(&[u8], Tool); 4] = [
            (b"sccache", Tool::Sccache),
            (b"ccache", Tool::Ccache),
            (b"fonn-ccache-storage", Tool::Ccache),
            (b"fonn-gocache", Tool::Go),
        ];
        let named = NAMES.iter().find(|(name, _)| {
            let rest = agent.strip_prefix(*name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        });
        named.map_or(Self::Generic, |(_, tool)| *tool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_known_by_the_beginning_of_its_name() {
        for (agent, tool) in [
            ("sccache/0.16.0", Tool::Sccache),
            ("ccache/4.14.2", Tool::Ccache),
            ("ccache", Tool::Ccache),
            ("fonn-gocache/0.1.0", Tool::Go),
            ("fonn-ccache-storage/0.1.0", Tool::Ccache),
            ("ccached/1", Tool::Generic),
            ("curl/8.5.0", Tool::Generic),
            ("", Tool::Generic),
        ] {
            assert_eq!(Tool::of_agent(agent.as_bytes()), tool, "{agent}");
        }
    }
}
