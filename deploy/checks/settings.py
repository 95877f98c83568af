"""Settings and ports as the programs have them: the one source that everything in deploy/ and terraform/ is compared with."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Of fonnctl, and the file of settings.
VARIABLES = {"FONN_ADMIN", "FONN_CONFIG", "FONN_USER", "FONN_PASSWORD", "FONN_PASSWORD_FILE", "FONN_TLS_CA"}
PORTS = {"router admin": 11281, "cluster": 11290}


def table():
    """TOML key → default, of the README's generated table."""
    rows = re.findall(r"^\| `--\S+.*?` \| `FONN_\w+` \| `(\w+)` \| (.*?) \| ", (ROOT / "README.md").read_text(), re.M)
    if len(rows) < 15:
        raise SystemExit("the settings in README.md could not be read")
    return dict(rows)


def of_router():
    """The keys of a router: the variables of its command line, whose names follow from them."""
    keys = set()
    for path, least in {"router/src/config.rs": 6, "crates/program/src/common.rs": 14}.items():
        found = re.findall(r'env = "FONN_([A-Z0-9_]+)"', (ROOT / path).read_text())
        if len(found) < least:
            raise SystemExit(f"the settings in {path} could not be read")
        keys |= {it.lower() for it in found}
    return keys - {"config"}


def known_keys():
    return set(table()) | of_router()


def known_variables():
    return {f"FONN_{key.upper()}" for key in known_keys()} | VARIABLES


def known_ports():
    defaults = table()
    return {
        "client": int(defaults["listen"].rpartition(":")[2]),
        "node admin": int(defaults["admin_listen"].rpartition(":")[2]),
        **PORTS,
    }
