//! Decoding that never fails, for types whose objects arrive in lists.
//!
//! The types derive their (strict) decoding as inherent functions with serde's `remote = "Self"`; the trait
//! implementations here call those on a JSON value and turn a failure into data.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{ElasticJobSpec, ElasticJobStatus};

impl<'de> Deserialize<'de> for ElasticJobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(ElasticJobSpec::deserialize(value).unwrap_or_else(|why| ElasticJobSpec {
            undecodable: Some(why.to_string()),
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
        Ok(ElasticJobStatus::deserialize(value).unwrap_or_else(|why| ElasticJobStatus {
            undecodable: Some(why.to_string()),
            ..ElasticJobStatus::default()
        }))
    }
}

impl Serialize for ElasticJobStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ElasticJobStatus::serialize(self, serializer)
    }
}
