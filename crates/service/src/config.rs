//! Loading a role's configuration: a TOML file, then environment variables over it.
//!
//! `SEMEL_KAFKA__MAX_CONNECTIONS=10` sets `max-connections` in `[kafka]`: two underscores go one table deeper, one
//! stands for the hyphen.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Format as _, Toml},
    value::{Dict, Map, Value},
};
use serde::de::DeserializeOwned;

/// The prefix of the environment variables that set configuration.
pub const ENV_PREFIX: &str = "SEMEL_";

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read configuration file {path}")]
    Read {
        /// The file that was named.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// One or more keys are missing, unknown, or of the wrong kind; all that were found are listed.
    #[error("configuration is not valid: {}", list(.0))]
    Invalid(Vec<Problem>),
}

/// One thing that is wrong in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the value came from: a file's path, or an environment variable.
    pub source: Option<String>,
    /// The key from the root (`kafka.max-connections`); empty for the whole file.
    pub key: String,
    /// What was found and what is expected.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "key '{}': ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

/// Reads `path` (if given, it must exist) and this process's `SEMEL_` variables, which win over it.
///
/// Errors: [`ConfigError::Read`] names the file; [`ConfigError::Invalid`] names source, key and expectation.
pub fn load<T: DeserializeOwned>(path: Option<&Path>) -> Result<T, ConfigError> {
    load_with(path, ENV_PREFIX, std::env::vars())
}

/// [`load`] with the environment as an argument.
///
/// Variables that Kubernetes adds for a service are skipped: a service `semel-broker` puts `SEMEL_BROKER_PORT` (a
/// URL) and a dozen others into every pod, and a configuration that refuses unknown keys would refuse to start.
pub fn load_with<T: DeserializeOwned>(
    path: Option<&Path>,
    prefix: &str,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    let mut figment = Figment::new();
    if let Some(path) = path {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
        // Parsed from text, not by figment from the file, so that a file that can't be read is told from a bad one.
        figment = figment.merge(Named { name: path.display().to_string(), inner: Toml::string(&text) });
    }
    for (name, key, value) in selected(prefix, variables) {
        figment = figment.merge(Variable { name, key, value });
    }
    figment.extract().map_err(|error| ConfigError::Invalid(error.into_iter().map(|e| problem(&e)).collect()))
}

fn problem(error: &figment::Error) -> Problem {
    let source = error.metadata.as_ref().map(|metadata| metadata.name.to_string());
    // A missing field's path is that of the table; the field's own name is in the kind.
    let mut key = error.path.join(".");
    let message = match &error.kind {
        Kind::MissingField(field) => {
            if !key.is_empty() {
                key.push('.');
            }
            key.push_str(field);
            "missing, and it has no default".to_owned()
        }
        Kind::UnknownField(field, expected) => {
            // figment puts the unknown field itself into the path when it knows it.
            if error.path.last() != Some(field) {
                if !key.is_empty() {
                    key.push('.');
                }
                key.push_str(field);
            }
            format!("unknown key; expected one of {}", expected.join(", "))
        }
        Kind::InvalidType(found, expected) => format!("expected {expected}, found {found}"),
        Kind::InvalidValue(found, expected) => format!("expected {expected}, found {found}"),
        other => other.to_string(),
    };
    Problem { source, key, message }
}

/// The variables with `prefix`, as (variable, key, value), in a fixed order.
fn selected(
    prefix: &str,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String, String)> {
    let all: BTreeMap<String, String> =
        variables.into_iter().filter(|(name, _)| name.starts_with(prefix)).collect();
    let services: Vec<&str> = all.keys().filter_map(|name| name.strip_suffix("_SERVICE_HOST")).collect();
    let is_link = |name: &str| {
        services.iter().any(|service| {
            name.strip_prefix(service).is_some_and(|rest| {
                rest == "_PORT" || rest.starts_with("_PORT_") || rest.starts_with("_SERVICE_")
            })
        })
    };
    all.iter()
        .filter(|(name, _)| !is_link(name) && name.len() > prefix.len())
        .map(|(name, value)| {
            let key = name[prefix.len()..].to_ascii_lowercase().replace("__", ".").replace('_', "-");
            (name.clone(), key, value.clone())
        })
        .collect()
}

/// A provider under a name of our choice, for error messages.
struct Named<P> {
    name: String,
    inner: P,
}

impl<P: Provider> Provider for Named<P> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.inner.data().map_err(|mut error| {
            error.metadata = Some(self.metadata());
            error
        })
    }
}

/// One environment variable.
struct Variable {
    name: String,
    key: String,
    value: String,
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(format!("environment variable {}", self.name))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let value: Value = match self.value.parse() {
            Ok(value) => value,
            Err(never) => match never {},
        };
        let dict = figment::util::nest(&self.key, value).into_dict().unwrap_or_default();
        Ok(Profile::Default.collect(dict))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Root {
        node_id: i32,
        #[serde(default)]
        kafka: Kafka,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
    struct Kafka {
        max_connections: u32,
        bind: String,
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let file = file("node-id = 1\n[kafka]\nmax-connections = 5\nbind = \"127.0.0.1:9092\"\n");
        let variables = env(&[("SEMEL_KAFKA__MAX_CONNECTIONS", "7"), ("OTHER", "x"), ("SEMEL_NODE_ID", "3")]);
        let root: Root = load_with(Some(file.path()), ENV_PREFIX, variables).unwrap();
        assert_eq!(
            root,
            Root { node_id: 3, kafka: Kafka { max_connections: 7, bind: "127.0.0.1:9092".to_owned() } }
        );
    }

    #[test]
    fn errors_name_source_key_and_expectation() {
        let bad = file("node-id = 1\n[kafka]\nmax-connections = \"many\"\n");
        let name = bad.path().display().to_string();
        let message = load_with::<Root>(Some(bad.path()), ENV_PREFIX, []).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "configuration is not valid: {name}: key 'kafka.max-connections': expected u32, found string \"many\""
            )
        );

        let unknown = file("node-id = 1\n[kafka]\nmax-conections = 3\n");
        let message = load_with::<Root>(Some(unknown.path()), ENV_PREFIX, []).unwrap_err().to_string();
        assert!(
            message
                .contains("key 'kafka.max-conections': unknown key; expected one of max-connections, bind"),
            "{message}"
        );

        let message = load_with::<Root>(None, ENV_PREFIX, []).unwrap_err().to_string();
        assert!(message.contains("key 'node-id': missing"), "{message}");

        let variables = env(&[("SEMEL_NODE_ID", "one")]);
        let message = load_with::<Root>(None, ENV_PREFIX, variables).unwrap_err().to_string();
        assert!(
            message.contains("environment variable SEMEL_NODE_ID: key 'node-id': expected i32"),
            "{message}"
        );

        let torn = file("node-id = \n");
        let message = load_with::<Root>(Some(torn.path()), ENV_PREFIX, []).unwrap_err().to_string();
        assert!(message.contains(&torn.path().display().to_string()), "{message}");

        let missing = load_with::<Root>(Some(Path::new("no/such/file.toml")), ENV_PREFIX, []).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read configuration file no/such/file.toml");
    }

    #[test]
    fn kubernetes_service_variables_are_no_configuration() {
        let variables = env(&[
            ("SEMEL_NODE_ID", "4"),
            ("SEMEL_BROKER_SERVICE_HOST", "10.0.0.1"),
            ("SEMEL_BROKER_SERVICE_PORT", "9092"),
            ("SEMEL_BROKER_PORT", "tcp://10.0.0.1:9092"),
            ("SEMEL_BROKER_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ]);
        let root: Root = load_with(None, ENV_PREFIX, variables).unwrap();
        assert_eq!(root.node_id, 4);
    }
}
