//! The schema language: lines, indentation, versions. See `schema/README.md`.

use std::collections::BTreeMap;

/// An inclusive range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) min: i16,
    pub(crate) max: i16,
}

impl Versions {
    pub(crate) fn contains(self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

/// One file: an API with its request and response, or a pair of embedded messages.
pub(crate) struct Schema {
    /// The file's stem: the Rust module's name.
    pub(crate) module: String,
    /// Kafka's name of the API, or of the family of embedded messages.
    pub(crate) name: String,
    /// The API key; none for embedded messages.
    pub(crate) key: Option<i16>,
    pub(crate) versions: Versions,
    /// First version with compact encodings and tagged fields.
    pub(crate) flexible_from: Option<i16>,
    /// Apache Kafka calls its newest version unstable.
    pub(crate) unstable: bool,
    /// Structs in the order they were met; messages have `message` set.
    pub(crate) structs: Vec<Struct>,
}

pub(crate) struct Struct {
    pub(crate) name: String,
    pub(crate) message: bool,
    pub(crate) fields: Vec<Field>,
    /// For the docs: where a nested struct stands.
    pub(crate) used_in: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) array: bool,
    pub(crate) base: Base,
    pub(crate) versions: Versions,
    pub(crate) null: Option<Versions>,
    pub(crate) tag: Option<u32>,
    pub(crate) default: Option<String>,
    pub(crate) ignorable: bool,
    pub(crate) doc: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Bool,
    Int8,
    Int16,
    Uint16,
    Int32,
    Int64,
    Float64,
    Uuid,
    TopicId,
    Error,
    String,
    Bytes,
    Records,
    ExternalRecords,
    Struct(String),
}

/// `name: sentence` lines, for fields whose meaning is the same everywhere.
pub(crate) fn glossary(text: &str) -> BTreeMap<String, String> {
    let mut words = BTreeMap::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (name, doc) =
            line.split_once(": ").unwrap_or_else(|| panic!("glossary.txt: no colon in `{line}`"));
        let old = words.insert(name.to_owned(), doc.trim().to_owned());
        assert!(old.is_none(), "glossary.txt: `{name}` stands twice");
    }
    words
}

pub(crate) fn schema(module: &str, text: &str) -> Schema {
    Parser { module, line_number: 0 }.run(text)
}

struct Parser<'a> {
    module: &'a str,
    line_number: usize,
}

impl Parser<'_> {
    fn fail(&self, why: &str) -> ! {
        panic!("schema/{}.txt:{}: {why}", self.module, self.line_number)
    }

    fn run(mut self, text: &str) -> Schema {
        let mut schema: Option<Schema> = None;
        // Structs that are still open, as (indentation of their fields, index in `structs`).
        let mut open: Vec<(usize, usize)> = Vec::new();
        for line in text.lines() {
            self.line_number += 1;
            let (content, doc) = match line.split_once('#') {
                Some((content, doc)) => (content.trim_end(), Some(doc.trim().to_owned())),
                None => (line.trim_end(), None),
            };
            if content.is_empty() {
                continue;
            }
            let indent = content.len() - content.trim_start().len();
            let words: Vec<&str> = content.split_whitespace().collect();
            if indent == 0 {
                open.clear();
                match (&mut schema, words.as_slice()) {
                    (None, ["api", key, name, rest @ ..]) => {
                        let key = key.parse().unwrap_or_else(|_| self.fail("the key is not a number"));
                        schema = Some(self.head(name, Some(key), rest));
                    }
                    (None, ["data", name, rest @ ..]) => schema = Some(self.head(name, None, rest)),
                    (None, _) => self.fail("the first line must be `api` or `data`"),
                    (Some(s), ["request"]) => {
                        self.open_struct(s, &mut open, format!("{}Request", s.name), true)
                    }
                    (Some(s), ["response"]) => {
                        self.open_struct(s, &mut open, format!("{}Response", s.name), true)
                    }
                    (Some(s), ["message", name]) => self.open_struct(s, &mut open, (*name).to_owned(), true),
                    (Some(s), ["struct", name]) => self.open_struct(s, &mut open, (*name).to_owned(), false),
                    (Some(_), _) => self.fail("expected `request`, `response`, `message` or `struct`"),
                }
                continue;
            }
            let Some(schema) = &mut schema else { self.fail("a field before the first line") };
            while open.last().is_some_and(|(level, _)| *level > indent) {
                open.pop();
            }
            let top = open.last().copied();
            let owner = match top {
                Some((level, owner)) if level == indent => owner,
                Some((level, owner)) if level + 2 == indent => {
                    // Deeper than the last field: the body of the struct that this field names.
                    let field =
                        schema.structs[owner].fields.last().unwrap_or_else(|| self.fail("stray body"));
                    let Base::Struct(name) = field.base.clone() else {
                        self.fail("only a struct has a body")
                    };
                    let used_in = format!("`{}` of [`{}`]", field.name, schema.structs[owner].name);
                    schema.structs.push(Struct { name, message: false, fields: Vec::new(), used_in });
                    open.push((indent, schema.structs.len() - 1));
                    schema.structs.len() - 1
                }
                _ => self.fail("wrong indentation"),
            };
            let field = self.field(schema.versions, &words, doc);
            schema.structs[owner].fields.push(field);
        }
        let schema = schema.unwrap_or_else(|| self.fail("the file is empty"));
        self.check(&schema);
        schema
    }

    fn open_struct(&self, schema: &mut Schema, open: &mut Vec<(usize, usize)>, name: String, message: bool) {
        let used_in = "this module's messages".to_owned();
        schema.structs.push(Struct { name, message, fields: Vec::new(), used_in });
        open.push((2, schema.structs.len() - 1));
    }

    fn head(&self, name: &str, key: Option<i16>, rest: &[&str]) -> Schema {
        let (versions, flexible, unstable) = match rest {
            ["versions", v, "flexible", f] => (v, f, false),
            ["versions", v, "flexible", f, "unstable"] => (v, f, true),
            _ => self.fail("expected `versions V flexible F [unstable]`"),
        };
        let all = Versions { min: 0, max: i16::MAX };
        let versions = self.versions(all, versions);
        let flexible_from = match *flexible {
            "none" => None,
            from => Some(self.versions(all, from).min),
        };
        Schema {
            module: self.module.to_owned(),
            name: name.to_owned(),
            key,
            versions,
            flexible_from,
            unstable,
            structs: Vec::new(),
        }
    }

    fn versions(&self, all: Versions, text: &str) -> Versions {
        let number = |t: &str| t.parse::<i16>().unwrap_or_else(|_| self.fail("a version is not a number"));
        let versions = if let Some(min) = text.strip_suffix('+') {
            Versions { min: number(min), max: all.max }
        } else if let Some((min, max)) = text.split_once('-') {
            Versions { min: number(min), max: number(max) }
        } else {
            Versions { min: number(text), max: number(text) }
        };
        if versions.min > versions.max || versions.min < all.min || versions.max > all.max {
            self.fail("versions out of range");
        }
        versions
    }

    fn field(&self, all: Versions, words: &[&str], doc: Option<String>) -> Field {
        let [name, ty, rest @ ..] = words else { self.fail("a field needs a name and a type") };
        let (array, base) = match ty.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            Some(element) => (true, element),
            None => (false, *ty),
        };
        let base = match base {
            "bool" => Base::Bool,
            "int8" => Base::Int8,
            "int16" => Base::Int16,
            "uint16" => Base::Uint16,
            "int32" => Base::Int32,
            "int64" => Base::Int64,
            "float64" => Base::Float64,
            "uuid" => Base::Uuid,
            "topic_id" => Base::TopicId,
            "error" => Base::Error,
            "string" => Base::String,
            "bytes" => Base::Bytes,
            "records" => Base::Records,
            "external_records" => Base::ExternalRecords,
            other if other.starts_with(|c: char| c.is_ascii_uppercase()) => Base::Struct(other.to_owned()),
            _ => self.fail("unknown type"),
        };
        let mut field = Field {
            name: (*name).to_owned(),
            array,
            base,
            versions: all,
            null: None,
            tag: None,
            default: None,
            ignorable: false,
            doc,
        };
        let mut rest = rest.iter().copied().peekable();
        let is_versions = |w: &str| w.starts_with(|c: char| c.is_ascii_digit());
        if let Some(word) = rest.next_if(|w| is_versions(w)) {
            field.versions = self.versions(all, word);
        }
        while let Some(word) = rest.next() {
            match word {
                "null" => {
                    let null = rest.next_if(|w| is_versions(w)).map(|w| self.versions(all, w));
                    field.null = Some(null.unwrap_or(field.versions));
                }
                "tag" => {
                    let tag = rest.next().and_then(|w| w.parse().ok());
                    field.tag = Some(tag.unwrap_or_else(|| self.fail("`tag` needs a number")));
                }
                "=" => {
                    let value = rest.next().unwrap_or_else(|| self.fail("`=` needs a value"));
                    field.default = Some(value.to_owned());
                }
                "ignorable" => field.ignorable = true,
                _ => self.fail("unknown word"),
            }
        }
        if field.default.as_deref() == Some("null") && field.null.is_none() {
            self.fail("the default is null in a field that cannot be null");
        }
        let records = matches!(field.base, Base::Records | Base::ExternalRecords);
        if records && (field.array || field.tag.is_some() || field.null.is_none()) {
            // The writer splices payloads by position, which holds for plain fields only.
            self.fail("records must be a plain nullable field");
        }
        field
    }

    fn check(&self, schema: &Schema) {
        for (index, one) in schema.structs.iter().enumerate() {
            if schema.structs[..index].iter().any(|other| other.name == one.name) {
                self.fail(&format!("struct {} stands twice", one.name));
            }
            let mut tags: Vec<u32> = one.fields.iter().filter_map(|f| f.tag).collect();
            tags.sort_unstable();
            if tags.windows(2).any(|w| w[0] == w[1]) {
                self.fail(&format!("struct {} has a tag twice", one.name));
            }
            for field in &one.fields {
                if let Base::Struct(name) = &field.base {
                    let Some(target) = schema.structs.iter().find(|s| s.name == *name) else {
                        self.fail(&format!("no struct {name}"));
                    };
                    if field.tag.is_some()
                        && target.fields.iter().any(|f| matches!(f.base, Base::ExternalRecords))
                    {
                        self.fail("records inside a tagged field");
                    }
                }
                if field.tag.is_some() && schema.flexible_from.is_none_or(|from| from > field.versions.min) {
                    self.fail(&format!("{}.{} is tagged before the flexible versions", one.name, field.name));
                }
            }
        }
    }
}
