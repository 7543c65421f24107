//! Reading an answer of `/api/v1/query`: one pass over the body, series by series, without a map per series.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::SourceError;

/// One series of a vector, or the whole of a scalar (then without labels).
pub(crate) struct Row<'a, 'de> {
    labels: &'a [(Cow<'de, str>, Cow<'de, str>)],
    /// When the query was evaluated, in seconds since the epoch, by Prometheus' clock.
    pub(crate) evaluated: f64,
    /// May be NaN or infinite.
    pub(crate) value: f64,
}

impl Row<'_, '_> {
    /// All labels with their values.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// A label's value; an empty one is as good as none, as in PromQL.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_ref()).filter(|v| !v.is_empty())
    }
}

/// What an answer says beside its series.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// `warnings`: parts are missing (a store of Thanos did not answer, ...).
    pub(crate) warnings: Vec<String>,
    /// `infos`: the query looks odd to Prometheus (`rate` of a gauge, ...).
    pub(crate) infos: Vec<String>,
    /// Series with native histograms, which can't be a signal's value.
    pub(crate) histograms: usize,
    /// Series read.
    pub(crate) rows: usize,
}

impl Notes {
    /// Whether parts of the data are missing, so that a sum may be too small. (Warnings of the language itself, as Prometheus
    /// marks them since version 2.48, are about the query and miss nothing.)
    pub(crate) fn is_partial(&self) -> bool {
        self.warnings.iter().any(|warning| !warning.starts_with("PromQL"))
    }

    /// One line for people, if there is anything to say.
    pub(crate) fn trouble(&self) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        if let Some(first) = self.warnings.first() {
            parts.push(format!("Prometheus warns: {}{}", shorten(first), more(self.warnings.len())));
        }
        if let Some(first) = self.infos.first() {
            parts.push(format!("Prometheus notes: {}{}", shorten(first), more(self.infos.len())));
        }
        if self.histograms > 0 {
            parts.push(format!(
                "{} series are native histograms: use histogram_quantile or histogram_avg",
                self.histograms
            ));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

fn more(count: usize) -> String {
    if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() }
}

/// Text of a foreign source, fit for a log line or a condition.
pub(crate) fn shorten(text: &str) -> String {
    let clean: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if clean.chars().count() <= 200 { clean } else { clean.chars().take(200).chain(['…']).collect() }
}

/// Reads a body and hands each series to `each`.
pub(crate) fn read(body: &[u8], each: &mut dyn FnMut(&Row<'_, '_>)) -> Result<Notes, SourceError> {
    if let Some(b'<') = body.iter().find(|b| !b.is_ascii_whitespace()) {
        return Err(SourceError::NotJson { what: "an HTML page".to_owned() });
    }
    let mut reading = Reading { each, labels: Vec::new(), notes: Notes::default(), head: Head::default() };
    let mut json = serde_json::Deserializer::from_slice(body);
    let done = Top(&mut reading).deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = done {
        return Err(if error.is_data() {
            SourceError::Shape { why: error.to_string() }
        } else {
            let start = String::from_utf8_lossy(&body[..body.len().min(80)]);
            SourceError::NotJson { what: format!("{:?} ({error})", shorten(&start)) }
        });
    }
    match reading.head.status.as_deref() {
        Some("success") => {}
        Some("error") => {
            return Err(SourceError::Refused {
                kind: reading.head.error_type.unwrap_or_else(|| "unknown".to_owned()),
                message: shorten(reading.head.error.as_deref().unwrap_or("no reason given")),
            });
        }
        _ => return Err(SourceError::Shape { why: "it has no status".to_owned() }),
    }
    match reading.head.result_type.as_deref() {
        Some("vector" | "scalar") => Ok(reading.notes),
        Some(other) => {
            Err(SourceError::Shape { why: format!("the query gives a {}, not one value per series", shorten(other)) })
        }
        None => Err(SourceError::Shape { why: "it has no resultType".to_owned() }),
    }
}

#[derive(Default)]
struct Head {
    status: Option<String>,
    error_type: Option<String>,
    error: Option<String>,
    result_type: Option<String>,
}

struct Reading<'s, 'de> {
    each: &'s mut dyn FnMut(&Row<'_, '_>),
    /// Reused from series to series.
    labels: Vec<(Cow<'de, str>, Cow<'de, str>)>,
    notes: Notes,
    head: Head,
}

/// A string that borrows from the body unless it has escapes. (`Cow` itself always copies in serde.)
struct Text<'de>(Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }
        }
        from.deserialize_str(V)
    }
}

/// Declares a seed over `&mut Reading` that deserializes a map or a sequence with one visitor method.
macro_rules! seed {
    ($name:ident, $how:ident, $expecting:literal, $visit:ident, $access:ident) => {
        struct $name<'r, 's, 'de>(&'r mut Reading<'s, 'de>);

        impl<'de> DeserializeSeed<'de> for $name<'_, '_, 'de> {
            type Value = ();
            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
                from.$how(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_, '_, 'de> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }
            fn $visit<A: $access<'de>>(self, access: A) -> Result<(), A::Error> {
                self.read(access)
            }
        }
    };
}

seed!(Top, deserialize_map, "an answer of the query API", visit_map, MapAccess);
seed!(Labels, deserialize_map, "a series' labels", visit_map, MapAccess);

impl<'de> Top<'_, '_, 'de> {
    fn read<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "status" => self.0.head.status = Some(map.next_value()?),
                "errorType" => self.0.head.error_type = Some(map.next_value()?),
                "error" => self.0.head.error = Some(map.next_value()?),
                "warnings" => self.0.notes.warnings = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "infos" => self.0.notes.infos = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "data" => map.next_value_seed(Data(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// `data`: an object, or null beside an error.
struct Data<'r, 's, 'de>(&'r mut Reading<'s, 'de>);

impl<'de> DeserializeSeed<'de> for Data<'_, '_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Data<'_, '_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("data of an answer")
    }
    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "resultType" => self.0.head.result_type = Some(map.next_value()?),
                "result" => {
                    // Of a matrix or a string nothing is read: `read` refuses it by its type.
                    if matches!(self.0.head.result_type.as_deref(), Some("matrix" | "string" | "streams")) {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        map.next_value_seed(Series(self.0))?;
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// `result`: a list of series, or `[time, "value"]` of a scalar.
struct Series<'r, 's, 'de>(&'r mut Reading<'s, 'de>);

impl<'de> DeserializeSeed<'de> for Series<'_, '_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Series<'_, '_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of series")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.0.head.result_type.as_deref() == Some("scalar") {
            let time: f64 = seq.next_element()?.ok_or_else(|| A::Error::custom("a scalar without time"))?;
            let value: Text<'de> = seq.next_element()?.ok_or_else(|| A::Error::custom("a scalar without value"))?;
            let value = number(&value.0).ok_or_else(|| A::Error::custom("a value that is not a number"))?;
            self.0.notes.rows += 1;
            (self.0.each)(&Row { labels: &[], evaluated: time, value });
            return Ok(());
        }
        while seq.next_element_seed(One(self.0))?.is_some() {}
        Ok(())
    }
}

seed!(One, deserialize_map, "a series", visit_map, MapAccess);

impl<'de> One<'_, '_, 'de> {
    fn read<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.labels.clear();
        let mut sample: Option<(f64, f64)> = None;
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "metric" => map.next_value_seed(Labels(self.0))?,
                "value" => {
                    let (time, text): (f64, Text<'de>) = map.next_value()?;
                    let value = number(&text.0).ok_or_else(|| A::Error::custom("a value that is not a number"))?;
                    sample = Some((time, value));
                }
                "histogram" => {
                    self.0.notes.histograms += 1;
                    map.next_value::<IgnoredAny>()?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if let Some((evaluated, value)) = sample {
            self.0.notes.rows += 1;
            (self.0.each)(&Row { labels: &self.0.labels, evaluated, value });
        }
        Ok(())
    }
}

impl<'de> Labels<'_, '_, 'de> {
    fn read<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            self.0.labels.push((name, value));
        }
        Ok(())
    }
}

/// Prometheus writes `NaN`, `+Inf`, `-Inf` and Go's shortest floats; Rust reads all of them.
fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
