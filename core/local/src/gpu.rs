//! GPU readings through NVML, where there is an NVIDIA driver.

use std::collections::{HashMap, HashSet};

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

/// GPU use of one process, in whole GPUs' worth (2 GPUs at 50 % are 1.0).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuUse {
    pub busy: Option<f64>,
    pub memory: Option<f64>,
}

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Gpus {
    nvml: Nvml,
    /// Per device: the time stamp of the newest sample taken, so that each is counted once.
    seen: HashMap<u32, u64>,
}

impl Gpus {
    /// The GPUs, or why there are none to read.
    pub fn open() -> Result<Gpus, String> {
        match Nvml::init() {
            Ok(nvml) => Ok(Gpus { nvml, seen: HashMap::new() }),
            Err(error) => Err(format!("no GPU can be read on this machine: {error}")),
        }
    }

    /// What each process used since the last look. A process that is on no GPU is not in the answer.
    pub fn read(&mut self) -> Result<HashMap<u32, GpuUse>, String> {
        let mut uses = HashMap::new();
        let count = self.nvml.device_count().map_err(|e| format!("NVML does not count the GPUs: {e}"))?;
        for index in 0..count {
            self.read_device(index, &mut uses).map_err(|e| format!("GPU {index} can't be read: {e}"))?;
        }
        Ok(uses)
    }

    fn read_device(&mut self, index: u32, uses: &mut HashMap<u32, GpuUse>) -> Result<(), NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let total = device.memory_info()?.total;
        let mut on_device = HashSet::new();
        for process in device.running_compute_processes()? {
            on_device.insert(process.pid);
            if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
                add(&mut uses.entry(process.pid).or_default().memory, share(bytes, total));
            }
        }
        let last = self.seen.get(&index).copied().unwrap_or(0);
        let samples = match device.process_utilization_stats(last) {
            // No process did anything since the last look.
            Err(NvmlError::NotFound) => Vec::new(),
            // Old GPUs, and MIG instances, do not tell per process.
            Err(NvmlError::NotSupported) => return Ok(()),
            other => other?,
        };
        let mut newest: HashMap<u32, (u64, u32)> = HashMap::new();
        for sample in samples.iter().filter(|s| s.timestamp > last && s.sm_util <= 100) {
            let entry = newest.entry(sample.pid).or_default();
            if sample.timestamp >= entry.0 {
                *entry = (sample.timestamp, sample.sm_util);
            }
            let seen = self.seen.entry(index).or_default();
            *seen = (*seen).max(sample.timestamp);
        }
        for pid in on_device {
            // It holds a context on this GPU; without a sample it was idle since the last look.
            let busy = newest.get(&pid).map_or(0.0, |(_, per_cent)| f64::from(*per_cent) / 100.0);
            add(&mut uses.entry(pid).or_default().busy, busy);
        }
        Ok(())
    }
}

/// Adds to a value that may not be known yet.
pub fn add(to: &mut Option<f64>, value: f64) {
    *to = Some(to.unwrap_or(0.0) + value);
}

#[allow(clippy::cast_precision_loss, reason = "bytes of GPU memory")]
fn share(used: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { used as f64 / total as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sums() {
        assert!((share(20, 80) - 0.25).abs() < f64::EPSILON);
        assert!(share(20, 0).abs() < f64::EPSILON);
        let mut sum = None;
        add(&mut sum, 0.5);
        add(&mut sum, 0.25);
        assert_eq!(sum, Some(0.75));
    }

    #[test]
    fn a_machine_without_a_driver_says_so_and_one_with_it_can_be_read() {
        match Gpus::open() {
            Err(why) => assert!(why.contains("no GPU can be read"), "{why}"),
            Ok(mut gpus) => assert!(gpus.read().is_ok()),
        }
    }
}
