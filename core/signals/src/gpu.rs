//! From rows per GPU to values per pod.
//!
//! A GPU is one thing however many rows it has: rows of two exporters or two scrapes of it are merged by its UUID and MIG
//! instance. Of an ordinary GPU, the share of time its engines were active is preferred to the coarser "some kernel ran". A
//! MIG instance has the former only, and counts as one GPU: it is what the pod asked for.
//!
//! A GPU that several pods share (time-slicing, MPS) shows up once per pod. If all show the same number, it is the whole
//! GPU's, copied, and each pod gets an equal part, so that the sum stays the GPU's. If they differ, they are measured per
//! process, and stand as they are.

use std::collections::{BTreeSet, HashMap, HashSet};

use eto_engine::signals::{Sample, SignalData};
use eto_engine::time::Time;

use crate::answer::{Notes, Row, read};
use crate::collect::{Bodies, owner, pods_of, sampled};
use crate::error::SourceError;
use crate::plan::{PART, Shape};

/// Above this, MiB of frame buffer are a sentinel for "no value" (`0x7ffffff0` and its kin), or an average over one.
const MAX_MEMORY_MIB: f64 = 1e8;

/// One pod's rows of one GPU; NaN is a row without a usable number.
#[derive(Default)]
struct Reading {
    active: Option<f64>,
    util: Option<f64>,
    used: Option<f64>,
    free: Option<f64>,
    at: Option<Time>,
}

/// A GPU or an instance of one, with the pods that have it.
#[derive(Default)]
struct Device {
    mig: bool,
    /// (namespace, pod) -> what its rows say.
    pods: HashMap<(String, String), Reading>,
}

/// Identity of a device: its UUID, or else host and number; and the MIG instance.
fn key(row: &Row<'_, '_>) -> (String, String) {
    let device = row.label("UUID").or_else(|| row.label("uuid")).map_or_else(
        || {
            let host = ["hostname", "Hostname", "instance"].iter().find_map(|l| row.label(l)).unwrap_or_default();
            format!("{host}/{}", row.label("gpu").unwrap_or_default())
        },
        ToOwned::to_owned,
    );
    (device, row.label("GPU_I_ID").unwrap_or_default().to_owned())
}

fn names_workload(row: &Row<'_, '_>) -> bool {
    row.label("exported_pod").or_else(|| row.label("pod_name")).is_some()
}

/// Exporters that name workloads by renamed labels: the plain labels of their other rows are the exporter's own.
fn renaming_exporters(body: &[u8]) -> Result<HashSet<String>, SourceError> {
    let mut found = HashSet::new();
    read(body, &mut |row| {
        if names_workload(row)
            && let Some(instance) = row.label("instance")
            && !found.contains(instance)
        {
            found.insert(instance.to_owned());
        }
    })?;
    Ok(found)
}

/// Reads the answers into `data`.
pub(crate) fn fold(
    data: &mut SignalData,
    bodies: &Bodies,
    wanted: &BTreeSet<String>,
    now: Time,
) -> Result<[Notes; 2], SourceError> {
    let renaming = renaming_exporters(&bodies.values)?;
    let own = |row: &Row<'_, '_>| {
        !names_workload(row) && row.label("instance").is_some_and(|instance| renaming.contains(instance))
    };
    let mut devices: HashMap<(String, String), Device> = HashMap::new();
    let mut each = |row: &Row<'_, '_>, set: &mut dyn FnMut(&mut Reading, &str)| {
        let Some((namespace, pod)) = owner(row).filter(|_| !own(row)) else { return };
        let device = devices.entry(key(row)).or_default();
        device.mig |= row.label("GPU_I_ID").is_some();
        set(
            device.pods.entry((namespace.to_owned(), pod.to_owned())).or_default(),
            row.label(PART).unwrap_or_default(),
        );
    };
    let values = read(&bodies.values, &mut |row| each(row, &mut |reading, part| reading.take(part, row.value)))?;
    let mut notes = [values, Notes::default()];
    if let Some(times) = &bodies.times {
        notes[1] = read(times, &mut |row| {
            let at = sampled(now, row.evaluated, row.value);
            each(row, &mut |reading, _| reading.at = reading.at.max(Some(at)));
        })?;
    }
    let memory = bodies.shape == Shape::GpuMemory;
    for device in devices.values() {
        for ((namespace, pod), value, at) in if memory { device.memory() } else { device.utilisation() } {
            if let Some(pods) = pods_of(data, namespace, wanted) {
                // A pod's sample is as old as its oldest GPU's, and no number unless all its GPUs have one.
                let sum = pods.entry(pod.clone()).or_insert(Sample { value: 0.0, at });
                sum.value += value;
                sum.at = sum.at.min(at);
            }
        }
    }
    Ok(notes)
}

impl Reading {
    fn take(&mut self, part: &str, value: f64) {
        let (slot, value) = match part {
            "active" => (&mut self.active, in_range(value, 1.0)),
            "util" => (&mut self.util, in_range(value, 100.0) / 100.0),
            "used" => (&mut self.used, in_range(value, MAX_MEMORY_MIB)),
            "free" => (&mut self.free, in_range(value, MAX_MEMORY_MIB)),
            _ => return,
        };
        // `max` of two rows of one GPU takes the number if the other is NaN.
        *slot = Some(slot.map_or(value, |known| known.max(value)));
    }

    fn used_share(&self) -> f64 {
        match (self.used, self.free) {
            (Some(used), Some(free)) if used + free > 0.0 => used / (used + free),
            _ => f64::NAN,
        }
    }
}

/// The value, or NaN if it can't be one: DCGM's blanks are huge, and an average over a blank still is too large. (A hair above
/// the top is rounding.)
fn in_range(value: f64, top: f64) -> f64 {
    if (0.0..=top * 1.01).contains(&value) { value.min(top) } else { f64::NAN }
}

type PodValue<'d> = (&'d (String, String), f64, Time);

impl Device {
    fn utilisation(&self) -> Vec<PodValue<'_>> {
        let active = |r: &Reading| r.active.unwrap_or(f64::NAN);
        let util = |r: &Reading| if self.mig { f64::NAN } else { r.util.unwrap_or(f64::NAN) };
        let best = |r: &Reading| if active(r).is_nan() { util(r) } else { active(r) };
        if self.pods.len() > 1 && self.differ(&util) {
            return self.each(&util, 1.0);
        }
        let parts = if self.pods.len() > 1 && self.differ(&best) { 1.0 } else { self.parts() };
        self.each(&best, parts)
    }

    fn memory(&self) -> Vec<PodValue<'_>> {
        let used = |r: &Reading| r.used.unwrap_or(f64::NAN);
        if self.pods.len() > 1 && self.differ(&used) {
            // Use is per process, what is free is the device's.
            let all: f64 = self.pods.values().map(used).sum();
            let share = |r: &Reading| r.free.map_or(f64::NAN, |free| used(r) / (all + free));
            return self.each(&share, 1.0);
        }
        self.each(&Reading::used_share, self.parts())
    }

    #[expect(clippy::cast_precision_loss, reason = "a handful of pods")]
    fn parts(&self) -> f64 {
        self.pods.len() as f64
    }

    /// Whether the pods show different numbers.
    fn differ(&self, of: &dyn Fn(&Reading) -> f64) -> bool {
        let mut values = self.pods.values().map(of).filter(|v| !v.is_nan());
        let first = values.next();
        first.is_some_and(|first| values.any(|v| (v - first).abs() > f64::EPSILON))
    }

    fn each(&self, of: &dyn Fn(&Reading) -> f64, parts: f64) -> Vec<PodValue<'_>> {
        // A GPU with a time but no value has gone quiet: the pod's number would be too small without it, so it is none.
        self.pods.iter().map(|(pod, r)| (pod, of(r) / parts, r.at.unwrap_or(Time(0)))).collect()
    }
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
