//! Decoding that never fails, for types whose objects arrive in lists.
//!
//! The types derive their (strict) decoding as inherent functions with serde's `remote = "Self"`; the trait
//! implementations here call those on a JSON value and turn a failure into data.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_path_to_error::{Deserializer as PathDeserializer, Track};

use crate::decode::Misfit;
use crate::{ElasticJobSpec, ElasticJobStatus};

/// `spec.replicas: must be a whole number, and is a string`
fn told(root: &str, track: Track, why: &serde_json::Error) -> String {
    Misfit::of(root, &track.path().to_string(), &why.to_string()).to_string()
}

impl<'de> Deserialize<'de> for ElasticJobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut track = Track::new();
        Ok(ElasticJobSpec::deserialize(PathDeserializer::new(value, &mut track)).unwrap_or_else(|why| ElasticJobSpec {
            undecodable: Some(told("spec", track, &why)),
            ..ElasticJobSpec::default()
        }))
    }
}

impl Serialize for ElasticJobSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ElasticJobSpec::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ElasticJobStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut track = Track::new();
        Ok(ElasticJobStatus::deserialize(PathDeserializer::new(value, &mut track)).unwrap_or_else(|why| {
            ElasticJobStatus { undecodable: Some(told("status", track, &why)), ..ElasticJobStatus::default() }
        }))
    }
}

impl Serialize for ElasticJobStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ElasticJobStatus::serialize(self, serializer)
    }
}
