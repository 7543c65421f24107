//! The self-test at start: which metrics and labels are there, so that a mismatch is read in the log and not guessed from
//! missing values.

use std::fmt;

use crate::answer::read;
use crate::client::Session;
use crate::error::SourceError;
use crate::plan::further;
use crate::promql::quote;
use crate::settings::PrometheusSettings;
use crate::source::Prometheus;

/// What was found out; its text has one line per finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfTest {
    /// In the order of the signals they matter for.
    pub findings: Vec<Finding>,
}

/// One thing looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked for.
    pub what: &'static str,
    /// How many series there are; an error if that could not be asked.
    pub series: Result<u64, SourceError>,
    /// What it means.
    pub meaning: &'static str,
}

impl fmt::Display for SelfTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, finding) in self.findings.iter().enumerate() {
            let line_break = if i == 0 { "" } else { "\n" };
            match &finding.series {
                Ok(series) => write!(f, "{line_break}{}: {series} series ({})", finding.what, finding.meaning)?,
                Err(error) => write!(f, "{line_break}{}: not known: {error}", finding.what)?,
            }
        }
        Ok(())
    }
}

impl SelfTest {
    /// Whether Prometheus answered at all.
    pub fn reachable(&self) -> bool {
        self.findings.iter().any(|finding| finding.series.is_ok())
    }

    /// Series of one finding, if it was found out.
    pub fn series(&self, what: &str) -> Option<u64> {
        self.findings.iter().find(|finding| finding.what == what).and_then(|finding| finding.series.clone().ok())
    }
}

/// Names of the findings, for logs and tests.
pub mod looked_for {
    /// CPU counters of containers.
    pub const CPU: &str = "cAdvisor CPU";
    /// Memory of containers.
    pub const MEMORY: &str = "cAdvisor memory";
    /// Workloads named by `exported_*` labels in cAdvisor's rows.
    pub const CADVISOR_EXPORTED: &str = "cAdvisor with exported_namespace";
    /// Engine activity of GPUs.
    pub const GPU_ACTIVE: &str = "GPU engine activity";
    /// Coarse utilisation of GPUs.
    pub const GPU_UTIL: &str = "GPU utilisation";
    /// Frame buffers.
    pub const GPU_MEMORY: &str = "GPU memory";
    /// GPUs whose workload is named by `exported_pod`.
    pub const GPU_EXPORTED: &str = "GPU rows with exported_pod";
    /// GPUs whose row has `pod` and no `exported_pod`.
    pub const GPU_PLAIN: &str = "GPU rows with pod alone";
    /// The label of newer exporters.
    pub const GPU_HOSTNAME: &str = "GPU rows with hostname";
    /// The label of older exporters.
    pub const GPU_HOSTNAME_OLD: &str = "GPU rows with Hostname";
    /// Speeds of trainings, from the agents.
    pub const THROUGHPUT: &str = "agents' throughput";
    /// MIG instances.
    pub const GPU_MIG: &str = "MIG instances";
}

/// What is looked for: its name, a selector, and what finding it means.
fn selectors(settings: &PrometheusSettings) -> Vec<(&'static str, String, &'static str)> {
    use looked_for as l;
    let further = further(settings);
    let cadvisor = |name: &str, rest: &str| format!("{name}{{container!=\"\"{rest}{further}}}");
    let names = &settings.gpu;
    let util_or_active = format!("{}|{}", names.utilisation, names.engine_active);
    let any_gpu = |matcher: &str| format!("{{__name__=~{},{matcher}{further}}}", quote(&util_or_active));
    let gpu = |name: &str| format!("{name}{{{}}}", further.trim_start_matches(','));
    vec![
        (l::CPU, cadvisor("container_cpu_usage_seconds_total", ""), "cpu-utilisation needs it"),
        (l::MEMORY, cadvisor("container_memory_working_set_bytes", ""), "memory-utilisation needs it"),
        (
            l::CADVISOR_EXPORTED,
            cadvisor("container_memory_working_set_bytes", r#",exported_namespace!="""#),
            "read by their exported_* labels",
        ),
        (l::GPU_ACTIVE, gpu(&names.engine_active), "gpu-utilisation prefers it; MIG has nothing else"),
        (l::GPU_UTIL, gpu(&names.utilisation), "gpu-utilisation takes it where engine activity is missing"),
        (l::GPU_MEMORY, gpu(&names.memory_used), "gpu-memory-utilisation needs it"),
        (l::GPU_EXPORTED, any_gpu(r#"exported_pod!="""#), "scraped with honor_labels: false; read by exported_pod"),
        (
            l::GPU_PLAIN,
            any_gpu(r#"exported_pod="",pod!="""#),
            "the workload with honor_labels: true, else the exporter's own pod of an idle GPU",
        ),
        (l::GPU_HOSTNAME, any_gpu(r#"hostname!="""#), "newer exporter"),
        (l::GPU_HOSTNAME_OLD, any_gpu(r#"Hostname!="""#), "older exporter"),
        (
            l::THROUGHPUT,
            format!(r#"{{__name__=~"eto_agent_(samples|steps)_per_second",elastic_job!=""{further}}}"#),
            "training-throughput needs it, with the label elastic_job",
        ),
        (l::GPU_MIG, any_gpu(r#"GPU_I_ID!="""#), "each counts as one GPU"),
    ]
}

impl Prometheus {
    /// Looks which metrics and labels are there. Takes at most the settings' `deadline`; never fails: what can't be found
    /// out is said in the finding.
    pub async fn check(&self) -> SelfTest {
        let session = self.http.session().await;
        let wanted = selectors(&self.settings);
        let findings = futures::future::join_all(wanted.into_iter().map(|(what, selector, meaning)| {
            let session = session.as_ref();
            async move {
                let series = match session {
                    Ok(session) => self.count(session, &selector).await,
                    Err(error) => Err(error.clone()),
                };
                Finding { what, series, meaning }
            }
        }));
        SelfTest { findings: findings.await }
    }

    async fn count(&self, session: &Session, selector: &str) -> Result<u64, SourceError> {
        let body = self.http.query(session, &format!("count({selector})")).await?;
        let mut count = 0.0;
        read(&body, &mut |row| count = row.value)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of series")]
        Ok(count as u64)
    }
}
