//! Tests on a real control plane. `tests/e2e.sh [WORD...]` runs the cases whose name contains one of the words.
//!
//! A case is an async function of an `Arc<World>`, named in the list below; it gets a namespace of its own and starts
//! its own operator.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: tests start processes and use files")]

mod crash;
mod ends;
mod guide;
mod install;
mod outage;
mod policies;
mod refusals;
mod resilience;
mod scaling;
mod starting;

use std::process::ExitCode;

use eto_e2e::cases;
use eto_e2e::run::alone;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    // The longest first.
    let mut all = cases![
        crash::killed_before_every_write_of_a_resize,
        scaling::grows_and_shrinks_on_prometheus_values,
        guide::structure_waits_for_its_template,
        guide::first_job_runs_with_master_and_workers,
        guide::patch_scale_get_and_delete,
        policies::a_new_version_decides_without_a_restart,
        policies::spread_puts_workers_apart,
        resilience::killed_in_the_middle_of_a_resize,
        resilience::nothing_is_asked_at_steady_state,
        resilience::suspended_and_resumed,
        resilience::a_growth_beyond_the_quota_is_taken_back,
        crash::the_other_replica_goes_on_when_the_leader_dies,
        crash::a_leader_that_is_cut_off_stops_acting,
        crash::a_leader_that_stops_gives_its_lease_back,
        outage::conflicts_are_overcome,
        outage::broken_watches_miss_nothing,
        outage::the_api_server_is_away,
        ends::failures_beyond_the_limit_end_the_job,
        ends::the_masters_success_is_the_jobs,
        ends::a_deleted_pod_makes_a_new_round,
        ends::a_new_template_is_a_new_round,
        starting::a_growth_without_room_is_taken_back,
        starting::a_gang_that_can_not_start_is_released,
        starting::refused_pods_are_told_and_tried_again,
        refusals::contradictions_are_refused_with_their_reason,
        refusals::changes_are_held_to_the_rules,
    ];
    // These watch all namespaces or change what all share.
    all.extend(alone(cases![
        guide::every_manifest_is_accepted,
        outage::the_api_server_restarts,
        install::plain_manifests_are_accepted,
        install::the_chart_installs,
        install::the_rights_suffice,
    ]));
    if std::env::args().any(|a| a == "--list") {
        all.iter().for_each(|c| println!("{}", c.name));
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if runtime.block_on(eto_e2e::run::run(all, &words)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
