#!/usr/bin/env python3
"""Reads the types of the AWS provider out of its published bindings (npm: @cdktf/provider-aws).

usage: aws_schema.py PACKAGE.tgz TERRAFORM_DIRECTORY  >  schema.json

The bindings are generated from the provider's schema. Of every resource and data source that the .tf files name this takes
the attributes with their types, the nested blocks, and what is required, as `schema-provider` reads it. Bindings do not say
which optional attributes the provider fills in itself, so all of them count as computed, too.
"""

import json
import pathlib
import re
import sys
import tarfile

# index.d.ts
INTERFACE = re.compile(r"^export interface (\w+)( extends cdktf\.TerraformMetaArguments)? \{$")
LINK = re.compile(r"#(\w+) \w+#\w+\}")
FIELD = re.compile(r"^    readonly (\w+)(\??): (.+?);?$")
# index.js: the form of an argument, and what can be read.
FUNCTION = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{$")
FORM_NAME = re.compile(r"^\s+(\w+): \{$")
FORM_PART = re.compile(r"^\s+(isBlock|type|storageClassType): \"?(\w+)\"?,$")
GETTER = re.compile(r"return this\.get(String|Number|Boolean|List|NumberList|StringMap|NumberMap|BooleanMap)Attribute\('(\w+)'\)")
READABLE_OBJECT = re.compile(r"this\._\w+ = new ([\w.]+)\(this, \"(\w+)\"")

SIMPLE = {"string": "string", "number": "number", "boolean": "bool"}
COLLECTIONS = {
    "stringList": ["list", "string"], "numberList": ["list", "number"], "booleanList": ["list", "bool"],
    "stringMap": ["map", "string"], "numberMap": ["map", "number"], "booleanMap": ["map", "bool"], "anyMap": ["map", "string"],
}
READ = {"String": "string", "Number": "number", "Boolean": "bool", "List": ["list", "string"], "NumberList": ["list", "number"],
        "StringMap": ["map", "string"], "NumberMap": ["map", "number"], "BooleanMap": ["map", "bool"]}


def lower_first(name):
    return name[0].lower() + name[1:]


def interfaces(types):
    """Interface → [(name in Terraform, optional, type)], and which of them is the resource's."""
    found, top, fields, name = {}, None, None, None
    for line in types.splitlines():
        if start := INTERFACE.match(line):
            fields = found.setdefault(start[1], [])
            top = start[1] if start[2] else top
        elif line == "}":
            fields = None
        elif fields is not None:
            if link := LINK.search(line):
                name = link[1]
            elif field := FIELD.match(line):
                fields.append((name, field[2] == "?", field[3]))
    return found, top


def forms(code):
    """Function, or None for the resource itself → {name in Terraform: (is a block, form, storage)}."""
    found, current, name, parts = {}, None, None, {}
    for line in code.splitlines():
        if start := FUNCTION.match(line):
            current = found.setdefault(start[1], {})
        elif line.strip() == "synthesizeHclAttributes() {":
            current = found.setdefault(None, {})
        elif line == "}":
            current = None
        elif current is None:
            continue
        elif entry := FORM_NAME.match(line):
            name, parts = entry[1], {}
        elif part := FORM_PART.match(line):
            parts[part[1]] = part[2]
            if len(parts) == 3:
                current[name] = (parts["isBlock"] == "true", parts["type"], parts["storageClassType"])
    return found


class Binding:
    """One resource or data source."""

    def __init__(self, types, code):
        self.interfaces, self.top = interfaces(types)
        self.forms = forms(code)
        self.code = code

    def block(self, interface=None):
        top = interface is None
        known = self.forms.get(None if top else lower_first(interface), {})
        attributes, blocks = {}, {}
        for name, optional, kind in self.interfaces[interface or self.top]:
            is_block, form, storage = known.get(name, (False, "simple", "string"))
            single = re.sub(r" \| cdktf\.IResolvable$", "", kind)
            target = single.removesuffix("[]")
            if is_block and target in self.interfaces:
                nested = {**self.block(target), "set": form == "set"}
                nested["min"] = 0 if optional else 1
                nested["max"] = 0 if single.endswith("[]") else 1
                blocks[name] = nested
            else:
                attributes[name] = {"type": type_of(single, form, storage), "required": not optional,
                                    "optional": optional, "computed": optional}
        if top:
            self.readable(attributes, blocks)
        return {"attributes": attributes, "blocks": blocks}

    def readable(self, attributes, blocks):
        """What only the provider sets. Objects become maps of strings in a list: they can be named, not looked into."""
        body = self.code.rpartition("\nclass ")[2]
        for kind, name in GETTER.findall(body):
            if name not in attributes and name not in blocks:
                attributes[name] = {"type": READ[kind], "computed": True}
        for kind, name in READABLE_OBJECT.findall(body):
            if name not in attributes and name not in blocks:
                mapped = kind.startswith("cdktf.")
                attributes[name] = {"type": ["map", "string"] if mapped else ["list", ["map", "string"]], "computed": True}


def type_of(kind, form, storage):
    if form == "simple":
        return SIMPLE.get(storage, "string")
    if storage in COLLECTIONS:
        outer, inner = COLLECTIONS[storage]
        return ["set", inner] if form == "set" else [outer, inner]
    raise SystemExit(f"a form that is not known: {kind}, {form}, {storage}")


def used(directory):
    """(kind, type) of all resources and data sources in the .tf files."""
    found = set()
    for path in pathlib.Path(directory).rglob("*.tf"):
        found |= set(re.findall(r'^\s*(resource|data)\s+"(aws_\w+)"', path.read_text(), re.M))
    return found


def folders(kind, name):
    """Where the bindings of a type may be: `s3-bucket-versioning`, `data-aws-region`."""
    short = name.removeprefix("aws_").replace("_", "-")
    return f"data-aws-{short}" if kind == "data" else short


def main():
    wanted = {folders(kind, name): (kind, name) for kind, name in used(sys.argv[2])}
    texts = {}
    with tarfile.open(sys.argv[1]) as package:
        for member in package:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[2] in wanted and parts[3] in ("index.js", "index.d.ts"):
                texts[parts[2], parts[3]] = package.extractfile(member).read().decode()
    out = {"resources": {}, "data_sources": {}, "provider": {"attributes": {}, "blocks": {}}}
    for name in ("region", "profile"):
        out["provider"]["attributes"][name] = {"type": "string", "optional": True}
    tags = {"attributes": {"tags": {"type": ["map", "string"], "optional": True}}, "blocks": {}}
    out["provider"]["blocks"]["default_tags"] = {**tags, "set": False, "min": 0, "max": 1}
    for folder, (kind, name) in sorted(wanted.items()):
        if (folder, "index.js") not in texts:
            raise SystemExit(f"the provider has no {kind} {name}")
        section = "data_sources" if kind == "data" else "resources"
        out[section][name] = Binding(texts[folder, "index.d.ts"], texts[folder, "index.js"]).block()
    json.dump(out, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
