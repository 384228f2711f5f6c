//! Rust out of schemas: structs, defaults, decoders, encoders, test values, and the tables over all of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::parse::{Base, Field, Schema, Struct, Versions};

macro_rules! line {
    ($out:expr, $($arg:tt)*) => {{
        let out: &mut String = $out;
        writeln!(out, $($arg)*).expect("writing to a String cannot fail");
    }};
}

/// The whole of `messages.rs`.
pub(crate) fn messages(schemas: &[Schema], glossary: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    for schema in schemas {
        module(&mut out, schema, glossary);
    }
    tables(&mut out, schemas);
    out
}

fn module(out: &mut String, schema: &Schema, glossary: &BTreeMap<String, String>) {
    let Versions { min, max } = schema.versions;
    match schema.key {
        Some(key) => line!(out, "/// {} (API key {key}), versions {min} to {max}.", schema.name),
        None => {
            line!(out, "/// {}: messages inside other messages' bytes, versions {min} to {max}.", schema.name)
        }
    }
    line!(out, "pub mod {} {{", schema.module);
    line!(out, "    use super::prelude::*;");
    for one in &schema.structs {
        Emit { schema, one, glossary }.all(out);
    }
    line!(out, "}}\n");
}

struct Emit<'a> {
    schema: &'a Schema,
    one: &'a Struct,
    glossary: &'a BTreeMap<String, String>,
}

impl Emit<'_> {
    fn all(&self, out: &mut String) {
        self.definition(out);
        self.default(out);
        self.codec(out);
        self.test_values(out);
    }

    fn definition(&self, out: &mut String) {
        let (one, schema) = (self.one, self.schema);
        if one.message {
            let Versions { min, max } = schema.versions;
            line!(out, "    /// Kafka's `{}`, versions {min} to {max}.", one.name);
        } else {
            line!(out, "    /// Part of a message: {}.", one.used_in);
        }
        line!(out, "    #[derive(Clone, Debug, PartialEq)]");
        line!(out, "    pub struct {} {{", one.name);
        for field in &one.fields {
            let words = field.doc.as_ref().or_else(|| self.glossary.get(&field.name));
            let Some(words) = words else {
                panic!("schema/{}.txt: glossary.txt has no word for {}", schema.module, field.name);
            };
            line!(out, "        /// {words}");
            line!(out, "        ///");
            line!(out, "        /// {}", facts(schema, field));
            line!(out, "        pub {}: {},", ident(field), rust_type(field));
        }
        line!(out, "    }}");
    }

    fn default(&self, out: &mut String) {
        let one = self.one;
        line!(out, "    impl Default for {} {{", one.name);
        line!(out, "        fn default() -> Self {{");
        line!(out, "            Self {{");
        for field in &one.fields {
            line!(out, "                {}: {},", ident(field), default_value(field));
        }
        line!(out, "            }}\n        }}\n    }}");
    }

    fn codec(&self, out: &mut String) {
        let one = self.one;
        let Versions { min, max } = self.schema.versions;
        line!(out, "    impl {} {{", one.name);
        if one.message {
            line!(out, "        /// Reads a body of version `v`; leaves what follows it in `r`.");
            line!(out, "        ///");
            line!(out, "        /// Errors: [`DecodeError`], among them a version outside {min} to {max}.");
            line!(out, "        pub fn decode(r: &mut Reader, v: i16) -> Result<Self, DecodeError> {{");
            line!(out, "            check_decode(\"{}\", v, {min}, {max})?;", one.name);
        } else {
            line!(
                out,
                "        pub(crate) fn decode(r: &mut Reader, v: i16) -> Result<Self, DecodeError> {{"
            );
        }
        line!(out, "            let flex = {};", self.flexible());
        for field in &one.fields {
            let name = ident(field);
            if field.tag.is_some() {
                line!(out, "            let mut {name} = {};", default_value(field));
            } else {
                let read = self.read(field);
                match self.condition(field.versions) {
                    None => line!(out, "            let {name} = {read}?;"),
                    Some(when) => {
                        let default = default_value(field);
                        line!(out, "            let {name} = if {when} {{ {read}? }} else {{ {default} }};");
                    }
                }
            }
        }
        if self.schema.flexible_from.is_some() {
            let tagged = self.tagged();
            if tagged.is_empty() {
                line!(out, "            if flex {{ r.skip_tags()?; }}");
            } else {
                line!(out, "            if flex {{");
                line!(out, "                r.tags(|r, tag| {{");
                line!(out, "                    match tag {{");
                for field in tagged {
                    let guard = self.condition(field.versions).map_or(String::new(), |w| format!(" if {w}"));
                    let tag = field.tag.expect("tagged fields have a tag");
                    let read = self.read(field);
                    line!(out, "                        {tag}{guard} => {} = {read}?,", ident(field));
                }
                line!(out, "                        _ => return Ok(false),");
                line!(out, "                    }}\n                    Ok(true)\n                }})?;");
                line!(out, "            }}");
            }
        }
        let names: Vec<String> = one.fields.iter().map(ident).collect();
        line!(out, "            Ok(Self {{ {} }})", names.join(", "));
        line!(out, "        }}\n");

        if one.message {
            line!(out, "        /// Writes the body in version `v`.");
            line!(out, "        ///");
            line!(
                out,
                "        /// Errors: [`EncodeError`]; a field that version `v` cannot carry must hold its default."
            );
            line!(out, "        pub fn encode(&self, w: &mut Writer, v: i16) -> Result<(), EncodeError> {{");
            line!(out, "            check_encode(\"{}\", v, {min}, {max})?;", one.name);
        } else {
            line!(
                out,
                "        pub(crate) fn encode(&self, w: &mut Writer, v: i16) -> Result<(), EncodeError> {{"
            );
        }
        line!(out, "            let flex = {};", self.flexible());
        for field in &one.fields {
            let absent = self.condition(field.versions);
            let refuse = format!(
                "return Err(EncodeError::NotInVersion {{ message: \"{}\", field: \"{}\", version: v }});",
                one.name, field.name
            );
            if field.tag.is_some() {
                if let (Some(when), false) = (absent, field.ignorable) {
                    line!(out, "            if !({when}) && {} {{ {refuse} }}", differs(field));
                }
                continue;
            }
            let write = self.write(field);
            match (absent, field.ignorable) {
                (None, _) => line!(out, "            {write};"),
                (Some(when), true) => line!(out, "            if {when} {{ {write}; }}"),
                (Some(when), false) => {
                    let differs = differs(field);
                    line!(out, "            if {when} {{ {write}; }} else if {differs} {{ {refuse} }}");
                }
            }
        }
        if self.schema.flexible_from.is_some() {
            let tagged = self.tagged();
            if tagged.is_empty() {
                line!(out, "            if flex {{ w.no_tags(); }}");
            } else {
                line!(out, "            if flex {{");
                for field in &tagged {
                    let when = self.condition(field.versions).map_or(String::new(), |w| format!("{w} && "));
                    let tag = field.tag.expect("tagged fields have a tag");
                    line!(out, "                let tag_{tag} = {when}{};", differs(field));
                }
                let count: Vec<String> = tagged
                    .iter()
                    .map(|f| format!("u32::from(tag_{})", f.tag.expect("tagged fields have a tag")))
                    .collect();
                line!(out, "                w.unsigned_varint({});", count.join(" + "));
                for field in &tagged {
                    let tag = field.tag.expect("tagged fields have a tag");
                    let write = self.write(field);
                    line!(
                        out,
                        "                if tag_{tag} {{ w.tagged({tag}, |w| {{ {write}; Ok(()) }})?; }}"
                    );
                }
                line!(out, "            }}");
            }
        }
        line!(out, "            Ok(())\n        }}\n    }}");
    }

    fn test_values(&self, out: &mut String) {
        let one = self.one;
        line!(out, "    #[cfg(any(test, feature = \"test-values\"))]");
        line!(out, "    impl {} {{", one.name);
        line!(out, "        /// A pseudo-random value that version `v` can carry. For tests.");
        line!(out, "        pub fn arbitrary(g: &mut crate::testing::TestRng, v: i16) -> Self {{");
        line!(out, "            Self {{");
        for field in &one.fields {
            let mut value = match &field.base {
                Base::Struct(name) => format!("{name}::arbitrary(g, v)"),
                other => format!("g.{}()", method(other)),
            };
            if field.array {
                value = format!("g.vec(|g| {value})");
            }
            if let (Some(null), false) = (field.null, own_null(&field.base)) {
                value = format!("g.option({}, |g| {value})", self.null_condition(field, null));
            }
            match self.condition(field.versions) {
                None => line!(out, "                {}: {value},", ident(field)),
                Some(when) => {
                    let default = default_value(field);
                    line!(
                        out,
                        "                {}: if {when} {{ {value} }} else {{ {default} }},",
                        ident(field)
                    );
                }
            }
        }
        line!(out, "            }}\n        }}\n    }}");
    }

    fn tagged(&self) -> Vec<&Field> {
        let mut tagged: Vec<&Field> = self.one.fields.iter().filter(|f| f.tag.is_some()).collect();
        tagged.sort_by_key(|f| f.tag);
        tagged
    }

    /// An expression for "this version is flexible".
    fn flexible(&self) -> String {
        match self.schema.flexible_from {
            None => "false".to_owned(),
            Some(from) if from <= self.schema.versions.min => "true".to_owned(),
            Some(from) => format!("v >= {from}"),
        }
    }

    /// An expression for "`v` is in `range`", or none where it always is.
    fn condition(&self, range: Versions) -> Option<String> {
        let all = self.schema.versions;
        match (range.min > all.min, range.max < all.max) {
            (false, false) => None,
            (true, false) => Some(format!("v >= {}", range.min)),
            (false, true) => Some(format!("v <= {}", range.max)),
            (true, true) if range.min == range.max => Some(format!("v == {}", range.min)),
            (true, true) => Some(format!("({}..={}).contains(&v)", range.min, range.max)),
        }
    }

    /// An expression for "null is allowed", inside the versions that have the field.
    fn null_condition(&self, field: &Field, null: Versions) -> String {
        if null.min <= field.versions.min && null.max >= field.versions.max {
            return "true".to_owned();
        }
        self.condition(null).unwrap_or_else(|| "true".to_owned())
    }

    /// An expression of type `Result<T, DecodeError>`.
    fn read(&self, field: &Field) -> String {
        let null = field.null.map(|null| self.null_condition(field, null));
        let element = match &field.base {
            Base::Struct(name) => format!("{name}::decode(r, v)"),
            base => format!("r.{}({})", method(base), flex_argument(base)),
        };
        if field.array {
            let least = self.least_element(field);
            return match null {
                None => format!("r.array(flex, {least}, |r| {element})"),
                Some(when) => format!("r.nullable_array(flex, {when}, {least}, |r| {element})"),
            };
        }
        match (&field.base, null) {
            (_, None) => element,
            (Base::Struct(_), Some(when)) => format!("r.nullable_struct({when}, |r| {element})"),
            (base, Some(when)) if own_null(base) => format!("r.{}(flex, {when})", method(base)),
            (base, Some(when)) => format!("r.nullable_{}(flex, {when})", method(base)),
        }
    }

    /// A statement that writes the field, without its semicolon.
    fn write(&self, field: &Field) -> String {
        let (name, word) = (ident(field), &field.name);
        let null = field.null.map(|null| self.null_condition(field, null));
        if field.array {
            let element = match &field.base {
                Base::Struct(_) => "x.encode(w, v)".to_owned(),
                Base::String => format!("w.string(flex, x, \"{word}\")"),
                Base::Bytes => format!("w.bytes(flex, x, \"{word}\")"),
                base => format!("{{ w.{}(*x); Ok(()) }}", method(base)),
            };
            return match null {
                None => format!("w.array(flex, &self.{name}, \"{word}\", |w, x| {element})?"),
                Some(when) => {
                    format!(
                        "w.nullable_array(flex, {when}, self.{name}.as_deref(), \"{word}\", |w, x| {element})?"
                    )
                }
            };
        }
        match (&field.base, null) {
            (Base::Struct(_), None) => format!("self.{name}.encode(w, v)?"),
            (Base::Struct(_), Some(when)) => {
                format!("w.nullable_struct({when}, self.{name}.as_ref(), \"{word}\", |w, x| x.encode(w, v))?")
            }
            (base @ (Base::String | Base::Bytes), None) => {
                format!("w.{}(flex, &self.{name}, \"{word}\")?", method(base))
            }
            (base @ (Base::String | Base::Bytes), Some(when)) => {
                format!("w.nullable_{}(flex, {when}, self.{name}.as_ref(), \"{word}\")?", method(base))
            }
            (base @ (Base::Records | Base::ExternalRecords), Some(when)) => {
                format!("w.{}(flex, {when}, &self.{name}, \"{word}\")?", method(base))
            }
            (base, _) => format!("w.{}(self.{name})", method(base)),
        }
    }

    /// The fewest bytes that one element of an array field takes, over all versions that have the field.
    fn least_element(&self, field: &Field) -> usize {
        (field.versions.min..=field.versions.max)
            .map(|v| self.least_base(&field.base, false, v))
            .min()
            .expect("a field has at least one version")
    }

    fn least_base(&self, base: &Base, null: bool, v: i16) -> usize {
        let flex = self.schema.flexible_from.is_some_and(|from| v >= from);
        match base {
            Base::Bool | Base::Int8 => 1,
            Base::Int16 | Base::Uint16 | Base::Error => 2,
            Base::Int32 => 4,
            Base::Int64 | Base::Float64 => 8,
            Base::Uuid | Base::TopicId => 16,
            Base::String => {
                if flex {
                    1
                } else {
                    2
                }
            }
            Base::Bytes | Base::Records | Base::ExternalRecords => {
                if flex {
                    1
                } else {
                    4
                }
            }
            Base::Struct(_) if null => 1,
            Base::Struct(name) => {
                let one = self.schema.structs.iter().find(|s| s.name == *name).expect("checked when parsed");
                let fields: usize = one
                    .fields
                    .iter()
                    .filter(|f| f.versions.contains(v) && f.tag.is_none())
                    .map(|f| match f.array {
                        true if flex => 1,
                        true => 4,
                        false => self.least_base(&f.base, f.null.is_some(), v),
                    })
                    .sum();
                fields + usize::from(flex)
            }
        }
    }
}

fn facts(schema: &Schema, field: &Field) -> String {
    let range = |v: Versions| match (v.min, v.max) {
        (min, max) if min == max => format!("version {min}"),
        (min, max) if max == schema.versions.max => format!("versions {min} and up"),
        (min, max) => format!("versions {min} to {max}"),
    };
    let mut facts = vec![match field.versions == schema.versions {
        true => "In all versions".to_owned(),
        false => format!("In {}", range(field.versions)),
    }];
    if let Some(tag) = field.tag {
        facts.push(format!("tag {tag}"));
    }
    match field.null {
        Some(null) if null == field.versions => facts.push("may be null".to_owned()),
        Some(null) => facts.push(format!("may be null in {}", range(null))),
        None => {}
    }
    match field.default.as_deref() {
        Some("null") => facts.push("null by default".to_owned()),
        Some(value) => facts.push(format!("default {value}")),
        None => {}
    }
    if field.ignorable && field.versions != schema.versions {
        facts.push("dropped in versions without it".to_owned());
    }
    format!("{}.", facts.join("; "))
}

fn ident(field: &Field) -> String {
    match field.name.as_str() {
        "match" | "type" => format!("r#{}", field.name),
        name => name.to_owned(),
    }
}

/// Types that hold null in themselves.
fn own_null(base: &Base) -> bool {
    matches!(base, Base::Records | Base::ExternalRecords)
}

fn rust_type(field: &Field) -> String {
    let base = match &field.base {
        Base::Bool => "bool",
        Base::Int8 => "i8",
        Base::Int16 => "i16",
        Base::Uint16 => "u16",
        Base::Int32 => "i32",
        Base::Int64 => "i64",
        Base::Float64 => "f64",
        Base::Uuid => "Uuid",
        Base::TopicId => "TopicId",
        Base::Error => "ErrorCode",
        Base::String => "KString",
        Base::Bytes => "Bytes",
        Base::Records => "Option<Bytes>",
        Base::ExternalRecords => "Records",
        Base::Struct(name) => name,
    };
    let whole = if field.array { format!("Vec<{base}>") } else { base.to_owned() };
    if field.null.is_some() && !own_null(&field.base) { format!("Option<{whole}>") } else { whole }
}

/// The name of the reader's, writer's and test generator's method.
fn method(base: &Base) -> &'static str {
    match base {
        Base::Bool => "bool",
        Base::Int8 => "i8",
        Base::Int16 => "i16",
        Base::Uint16 => "u16",
        Base::Int32 => "i32",
        Base::Int64 => "i64",
        Base::Float64 => "f64",
        Base::Uuid => "uuid",
        Base::TopicId => "topic_id",
        Base::Error => "error_code",
        Base::String => "string",
        Base::Bytes => "bytes",
        Base::Records => "records",
        Base::ExternalRecords => "external_records",
        Base::Struct(name) => panic!("struct {name} has no method"),
    }
}

fn flex_argument(base: &Base) -> &'static str {
    match base {
        Base::String | Base::Bytes => "flex",
        _ => "",
    }
}

fn default_value(field: &Field) -> String {
    let given = field.default.as_deref();
    match &field.base {
        Base::Records => return "None".to_owned(),
        Base::ExternalRecords => return "Records::Null".to_owned(),
        _ if given == Some("null") => return "None".to_owned(),
        _ => {}
    }
    let bare = if field.array {
        "Vec::new()".to_owned()
    } else {
        match &field.base {
            Base::Bool => given.unwrap_or("false").to_owned(),
            Base::Int8 | Base::Int16 | Base::Uint16 | Base::Int32 | Base::Int64 => {
                given.unwrap_or("0").to_owned()
            }
            Base::Float64 => "0.0".to_owned(),
            Base::Uuid => "Uuid::nil()".to_owned(),
            Base::TopicId => "TopicId::ZERO".to_owned(),
            Base::Error => "ErrorCode::None".to_owned(),
            Base::String => "KString::default()".to_owned(),
            Base::Bytes => "Bytes::new()".to_owned(),
            Base::Struct(name) => format!("{name}::default()"),
            Base::Records | Base::ExternalRecords => unreachable!("handled above"),
        }
    };
    if field.null.is_some() { format!("Some({bare})") } else { bare }
}

/// An expression for "the field does not hold its default".
fn differs(field: &Field) -> String {
    let name = ident(field);
    match (field.null.is_some() && !own_null(&field.base), field.default.as_deref()) {
        (true, Some("null")) => return format!("self.{name}.is_some()"),
        (true, _) => return format!("self.{name} != {}", default_value(field)),
        _ => {}
    }
    if field.array {
        return format!("!self.{name}.is_empty()");
    }
    match (&field.base, field.default.as_deref()) {
        (Base::Bool, Some("true")) => format!("!self.{name}"),
        (Base::Bool, _) => format!("self.{name}"),
        (Base::String | Base::Bytes, _) => format!("!self.{name}.is_empty()"),
        _ => format!("self.{name} != {}", default_value(field)),
    }
}

/// The enums over all APIs, and the version table.
fn tables(out: &mut String, schemas: &[Schema]) {
    let apis: Vec<&Schema> = schemas.iter().filter(|s| s.key.is_some()).collect();
    for schema in schemas {
        for one in schema.structs.iter().filter(|s| s.message) {
            line!(out, "pub use {}::{};", schema.module, one.name);
            line!(out, "impl Message for {} {{", one.name);
            line!(out, "    const NAME: &'static str = \"{}\";", one.name);
            line!(
                out,
                "    fn decode(r: &mut Reader, v: i16) -> Result<Self, DecodeError> {{ Self::decode(r, v) }}"
            );
            line!(
                out,
                "    fn encode(&self, w: &mut Writer, v: i16) -> Result<(), EncodeError> {{ self.encode(w, v) }}"
            );
            line!(out, "}}");
        }
    }
    for schema in &apis {
        let name = &schema.name;
        line!(out, "impl ApiRequest for {name}Request {{");
        line!(out, "    const KEY: ApiKey = ApiKey::{name};\n    type Response = {name}Response;\n}}");
    }
    for kind in ["Request", "Response"] {
        line!(out, "/// The body of a {}, one variant for each API with a schema.", kind.to_lowercase());
        line!(out, "#[derive(Clone, Debug, PartialEq)]");
        line!(out, "pub enum {kind} {{");
        for schema in &apis {
            line!(out, "    /// {} (API key {}).", schema.name, schema.key.expect("APIs have a key"));
            line!(out, "    {}({}{kind}),", schema.name, schema.name);
        }
        line!(out, "}}\n");
        for schema in &apis {
            line!(out, "impl From<{}{kind}> for {kind} {{", schema.name);
            line!(
                out,
                "    fn from(body: {}{kind}) -> Self {{ Self::{}(body) }}\n}}",
                schema.name,
                schema.name
            );
        }
        line!(out, "impl {kind} {{");
        line!(out, "    /// The API this body belongs to.");
        line!(out, "    #[must_use]");
        line!(out, "    pub const fn key(&self) -> ApiKey {{\n        match self {{");
        for schema in &apis {
            line!(out, "            Self::{}(_) => ApiKey::{},", schema.name, schema.name);
        }
        line!(out, "        }}\n    }}\n");
        if kind == "Request" {
            line!(
                out,
                "    /// Reads a body. Bytes left over are passed over, as Kafka does: librdkafka 2.12 sends some."
            );
        } else {
            line!(out, "    /// Reads a whole body: bytes left over are an error.");
        }
        line!(out, "    ///");
        line!(
            out,
            "    /// Errors: [`DecodeError`], among them an API without a schema and a version out of its range."
        );
        line!(
            out,
            "    pub fn decode(key: ApiKey, version: i16, r: &mut Reader) -> Result<Self, DecodeError> {{"
        );
        line!(out, "        let body = match key {{");
        for schema in &apis {
            let name = &schema.name;
            line!(out, "            ApiKey::{name} => Self::{name}({name}{kind}::decode(r, version)?),");
        }
        line!(out, "            other => return Err(DecodeError::UnsupportedApi {{ key: other.code() }}),");
        let finish = if kind == "Request" { "" } else { "        r.finish()?;\n" };
        line!(out, "        }};\n{finish}        Ok(body)\n    }}\n");
        line!(out, "    /// Writes the body in `version`.");
        line!(out, "    ///");
        line!(out, "    /// Errors: [`EncodeError`].");
        line!(out, "    pub fn encode(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError> {{");
        line!(out, "        match self {{");
        for schema in &apis {
            line!(out, "            Self::{}(body) => body.encode(w, version),", schema.name);
        }
        line!(out, "        }}\n    }}\n");
        line!(
            out,
            "    /// A pseudo-random body that `version` can carry; `None` for an API without a schema."
        );
        line!(out, "    #[cfg(any(test, feature = \"test-values\"))]");
        line!(
            out,
            "    pub fn arbitrary(key: ApiKey, g: &mut crate::testing::TestRng, version: i16) -> Option<Self> {{"
        );
        line!(out, "        Some(match key {{");
        for schema in &apis {
            let name = &schema.name;
            line!(out, "            ApiKey::{name} => Self::{name}({name}{kind}::arbitrary(g, version)),");
        }
        line!(out, "            _ => return None,\n        }})\n    }}\n}}\n");
    }
    line!(out, "/// Every API with a schema, by ascending key.");
    line!(out, "pub static SUPPORTED: [ApiSupport; {}] = [", apis.len());
    for schema in &apis {
        let Versions { min, max } = schema.versions;
        let stable = max - i16::from(schema.unstable);
        let flexible = schema.flexible_from.map_or("None".to_owned(), |from| format!("Some({from})"));
        line!(
            out,
            "    ApiSupport {{ key: ApiKey::{}, min: {min}, max: {max}, stable_max: {stable}, flexible_from: {flexible} }},",
            schema.name
        );
    }
    line!(out, "];");
}
