//! GPU readings through NVML, where there is an NVIDIA driver.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use eto_engine::time::Time;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// How long the last sample of a process stands in where the driver has none that is newer. It samples several times a
/// second, but tells of it with a delay.
const STANDS: Duration = Duration::from_secs(10);

/// GPU use of one process, in whole GPUs' worth (2 GPUs at 50 % are 1.0).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuUse {
    /// `None` = it is not known of one of its GPUs: a sum without that one would be too small.
    pub busy: Option<f64>,
    pub memory: Option<f64>,
}

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Gpus {
    nvml: Nvml,
    devices: HashMap<u32, Samples>,
}

/// What was sampled on one device.
#[derive(Debug, Default)]
struct Samples {
    /// Time stamp of the newest one taken, so that each is counted once.
    newest: u64,
    /// Process -> its newest one, and when that was taken.
    of: HashMap<u32, (f64, Time)>,
}

/// What was seen of all devices in one look.
#[derive(Debug, Default)]
struct Seen {
    uses: HashMap<u32, GpuUse>,
    /// Processes of which one device does not tell how busy they are: on all of them together it is not known then.
    unknown: HashSet<u32>,
}

impl Gpus {
    /// The GPUs, or why there are none to read.
    pub fn open() -> Result<Gpus, String> {
        match Nvml::init() {
            Ok(nvml) => Ok(Gpus { nvml, devices: HashMap::new() }),
            Err(error) => Err(format!("no GPU can be read on this machine: {error}")),
        }
    }

    /// What each process used since the last look. A process that is on no GPU is not in the answer.
    pub fn read(&mut self, now: Time) -> Result<HashMap<u32, GpuUse>, String> {
        let mut seen = Seen::default();
        let count = self.nvml.device_count().map_err(|e| format!("NVML does not count the GPUs: {e}"))?;
        for index in 0..count {
            self.read_device(index, now, &mut seen).map_err(|e| format!("GPU {index} can't be read: {e}"))?;
        }
        Ok(seen.settled())
    }

    fn read_device(&mut self, index: u32, now: Time, seen: &mut Seen) -> Result<(), NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let total = device.memory_info()?.total;
        let mut on_device = HashSet::new();
        for process in device.running_compute_processes()? {
            on_device.insert(process.pid);
            if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
                add(&mut seen.uses.entry(process.pid).or_default().memory, share(bytes, total));
            }
        }
        let samples = self.devices.entry(index).or_default();
        let fresh = samples.take(&device)?;
        let Some(fresh) = fresh else {
            seen.unknown.extend(on_device);
            return Ok(());
        };
        // Asked only where it decides: no process has a sample.
        let is_idle = fresh.is_empty() && device.utilization_rates().is_ok_and(|rates| rates.gpu == 0);
        for (pid, busy) in samples.busy(&on_device, &fresh, is_idle, now) {
            match busy {
                Some(busy) => add(&mut seen.uses.entry(pid).or_default().busy, busy),
                None => drop(seen.unknown.insert(pid)),
            }
        }
        Ok(())
    }
}

impl Seen {
    fn settled(mut self) -> HashMap<u32, GpuUse> {
        for pid in self.unknown {
            self.uses.entry(pid).or_default().busy = None;
        }
        self.uses
    }
}

impl Samples {
    /// The newest sample of each process since the last look, as a share of the device; `None` = this device does not tell
    /// per process (old GPUs, and MIG instances).
    fn take(&mut self, device: &Device<'_>) -> Result<Option<HashMap<u32, f64>>, NvmlError> {
        let last = self.newest;
        let samples = match device.process_utilization_stats(last) {
            Err(NvmlError::NotFound) => Vec::new(),
            Err(NvmlError::NotSupported) => return Ok(None),
            other => other?,
        };
        let mut newest: HashMap<u32, (u64, f64)> = HashMap::new();
        for sample in samples.iter().filter(|s| s.timestamp > last && s.sm_util <= 100) {
            let entry = newest.entry(sample.pid).or_default();
            if sample.timestamp >= entry.0 {
                *entry = (sample.timestamp, f64::from(sample.sm_util) / 100.0);
            }
            self.newest = self.newest.max(sample.timestamp);
        }
        Ok(Some(newest.into_iter().map(|(pid, (_, busy))| (pid, busy)).collect()))
    }

    /// How busy each of these processes keeps the device, given the samples since the last look.
    ///
    /// The driver has samples of processes that did something. So one without is idle where others have one, or where the
    /// whole device is idle. Else there is just no newer sample yet: the last one stands in for a while, and then nobody
    /// knows. A busy GPU must not read as an idle one.
    fn busy(
        &mut self,
        on_device: &HashSet<u32>,
        fresh: &HashMap<u32, f64>,
        is_idle: bool,
        now: Time,
    ) -> Vec<(u32, Option<f64>)> {
        self.of.retain(|pid, (_, at)| on_device.contains(pid) && now.since(*at) <= STANDS);
        let idle = is_idle || !fresh.is_empty();
        let mut busy = |pid: u32| match fresh.get(&pid) {
            Some(busy) => {
                self.of.insert(pid, (*busy, now));
                Some(*busy)
            }
            None if idle => {
                self.of.remove(&pid);
                Some(0.0)
            }
            None => self.of.get(&pid).map(|(busy, _)| *busy),
        };
        on_device.iter().map(|pid| (*pid, busy(*pid))).collect()
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

    /// When it is looked, in seconds; what is sampled since the look before; whether the device is idle.
    type Look<'a> = (u64, &'a [(u32, f64)], bool);

    /// What is told of processes 1 and 2 at each look.
    fn told(looks: &[Look<'_>]) -> Vec<[Option<f64>; 2]> {
        let mut samples = Samples::default();
        let mut look = |(second, fresh, is_idle): &Look<'_>| {
            let fresh = fresh.iter().copied().collect();
            let told: HashMap<_, _> =
                samples.busy(&HashSet::from([1, 2]), &fresh, *is_idle, Time(second * 1000)).into_iter().collect();
            [told[&1], told[&2]]
        };
        looks.iter().map(&mut look).collect()
    }

    #[test]
    fn without_a_newer_sample_a_busy_gpu_does_not_read_as_idle() {
        let both: &[(u32, f64)] = &[(1, 0.9), (2, 0.4)];
        let got = told(&[(1, both, false), (2, &[], false), (11, &[], false), (12, &[], false), (13, both, false)]);
        let known = [Some(0.9), Some(0.4)];
        assert_eq!(got, [known, known, known, [None, None], known], "the last one stands for ten seconds");
        assert_eq!(told(&[(1, &[], false)]), [[None, None]], "nothing was ever sampled");
    }

    #[test]
    fn an_idle_gpu_and_an_idle_process_read_as_idle() {
        let both: &[(u32, f64)] = &[(1, 0.9), (2, 0.4)];
        assert_eq!(told(&[(1, both, false), (2, &[], true)])[1], [Some(0.0), Some(0.0)]);
        let got = told(&[(1, both, false), (2, &[(1, 0.8)], false), (3, &[], false)]);
        assert_eq!(got[1], [Some(0.8), Some(0.0)], "process 2 did nothing while 1 did");
        assert_eq!(got[2], [Some(0.8), None], "and what it does now is not known");
    }

    #[test]
    fn of_a_process_on_two_gpus_both_have_to_be_known() {
        let mut seen = Seen::default();
        for pid in [1, 2] {
            seen.uses.insert(pid, GpuUse { busy: Some(0.9), memory: Some(0.5) });
        }
        seen.unknown = HashSet::from([2]);
        let uses = seen.settled();
        assert_eq!((uses[&1].busy, uses[&2].busy, uses[&2].memory), (Some(0.9), None, Some(0.5)));
    }

    #[test]
    fn a_machine_without_a_driver_says_so_and_one_with_it_can_be_read() {
        match Gpus::open() {
            Err(why) => assert!(why.contains("no GPU can be read"), "{why}"),
            Ok(mut gpus) => assert!(gpus.read(Time(1000)).is_ok()),
        }
    }
}
