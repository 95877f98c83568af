//! Which role the user of each method of the admin services needs, wherever it is called. A method
//! without a row is for admins; a test of the node sees to it that there is none.

use super::Role::{self, Admin, Read, ReadWrite};

/// By `package.Service/Method`.
pub const ROLES: &[(&str, Role)] = &[
    ("fonn.v1.Admin/Status", Read),
    // Of the own namespace, unless the user is an admin (`caller`).
    ("fonn.v1.Admin/Key", Read),
    ("fonn.v1.Admin/DeleteKey", ReadWrite),
    ("fonn.v1.Admin/Flush", ReadWrite),
    // Of what others wrote.
    ("fonn.v1.Admin/CountWritten", Admin),
    ("fonn.v1.Admin/Purge", Admin),
    // The own one and its base, unless the user is an admin.
    ("fonn.v1.Admin/ListNamespaces", Read),
    // It reads disk and bucket as fast as it may, which costs, and concerns all namespaces.
    ("fonn.v1.Admin/Warm", Admin),
    ("fonn.v1.Admin/SetCodec", Admin),
    // It writes to the bucket and costs requests.
    ("fonn.v1.Cold/Doctor", Admin),
    ("fonn.v1.Cold/ListSegments", Read),
    // It tells the keys of all namespaces.
    ("fonn.v1.Cold/InspectSegment", Admin),
    // It reads what is in the bucket, which costs.
    ("fonn.v1.Cold/Verify", Admin),
    ("fonn.v1.Cold/Rebuild", Admin),
    ("fonn.v1.Membership/Map", Read),
    ("fonn.v1.Membership/Drain", Admin),
    ("fonn.v1.Membership/Remove", Admin),
    ("fonn.v1.Membership/SetWeight", Admin),
    ("fonn.v1.Membership/SetReplicas", Admin),
    ("fonn.v1.Router/Status", Read),
    // It tells paths and addresses, as `CONFIG GET` does, which is for admins too.
    ("fonn.v1.Settings/Config", Admin),
    // A user that gives roles may do everything.
    ("fonn.v1.Users/List", Admin),
    ("fonn.v1.Users/Put", Admin),
    ("fonn.v1.Users/Remove", Admin),
    ("fonn.v1.Telemetry/Watch", Read),
    ("fonn.v1.Telemetry/Events", Read),
    // It names the identities of all namespaces.
    ("fonn.v1.Tools/Uses", Admin),
];
