"""Settings and ports as the programs have them: the one source that everything in deploy/ and terraform/ is compared with."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Settings of the cluster, of access and of the router, until the README's generated table has them too.
OTHERS = {
    "users_file", "tls_cert", "tls_key", "tls_client_ca",
    "node_id", "cluster_listen", "advertise", "join", "bootstrap", "zone", "weight",
    "cluster",
}
# Of fonnctl.
VARIABLES = {"FONN_ADMIN", "FONN_CONFIG"}
PORTS = {"router admin": 11281, "cluster": 11290}


def table():
    """TOML key → default, of the README's generated table."""
    rows = re.findall(r"^\| `--\S+.*?` \| `FONN_\w+` \| `(\w+)` \| (.*?) \| ", (ROOT / "README.md").read_text(), re.M)
    if len(rows) < 15:
        raise SystemExit("the settings in README.md could not be read")
    return dict(rows)


def known_keys():
    return set(table()) | OTHERS


def known_variables():
    return {f"FONN_{key.upper()}" for key in known_keys()} | VARIABLES


def known_ports():
    defaults = table()
    return {
        "client": int(defaults["listen"].rpartition(":")[2]),
        "node admin": int(defaults["admin_listen"].rpartition(":")[2]),
        **PORTS,
    }
