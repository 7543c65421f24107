//! Tests on a real control plane. `tests/e2e.sh [WORD...]` runs the cases whose name contains one of the words.
//!
//! A case is an async function of an `Arc<World>`, named in the list below; it gets a namespace of its own and starts
//! its own operator.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: tests start processes and use files")]

mod bad_input;
mod crash;
mod ends;
mod guide;
mod hpa;
mod install;
mod nodes;
mod outage;
mod policies;
mod refusals;
mod resilience;
mod scaling;
mod starting;
mod state;
mod swap;
mod volumes;

use std::process::ExitCode;

use eto_e2e::cases;
use eto_e2e::run::alone;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    // The longest first.
    let mut all = cases![
        crash::killed_before_every_write_of_a_resize,
        scaling::grows_and_shrinks_on_prometheus_values,
        bad_input::a_broken_prometheus_shrinks_nothing,
        scaling::a_module_grows_and_shrinks,
        scaling::one_query_of_two_jobs_is_nobodys,
        scaling::recommend_shows_and_off_asks_nobody,
        swap::swapped_under_load_without_a_missed_evaluation,
        swap::a_swap_does_not_wait_for_the_period,
        state::a_large_state_outlives_the_operator,
        hpa::a_real_hpa_sizes_a_job,
        ends::the_masters_success_is_the_jobs,
        guide::patch_scale_get_and_delete,
        guide::structure_waits_for_its_template,
        guide::first_job_runs_with_master_and_workers,
        policies::a_new_version_decides_without_a_restart,
        policies::spread_puts_workers_apart,
        policies::topology_keeps_workers_in_one_zone,
        volumes::placement_stays_where_the_volumes_are,
        volumes::workers_go_where_a_claim_of_one_node_is_in_use,
        resilience::killed_in_the_middle_of_a_resize,
        resilience::nothing_is_asked_at_steady_state,
        resilience::suspended_and_resumed,
        resilience::a_growth_beyond_the_quota_is_taken_back,
        crash::the_other_replica_goes_on_when_the_leader_dies,
        crash::a_leader_that_is_cut_off_stops_acting,
        crash::a_leader_that_stops_gives_its_lease_back,
        outage::conflicts_are_overcome,
        outage::a_busy_api_server_is_tried_again,
        outage::broken_watches_miss_nothing,
        outage::the_api_server_is_away,
        ends::failures_beyond_the_limit_end_the_job,
        ends::a_deleted_pod_makes_a_new_round,
        ends::a_new_template_is_a_new_round,
        nodes::evictions_are_held_to_the_jobs_budget,
        starting::a_growth_without_room_is_taken_back,
        starting::a_gang_that_can_not_start_is_released,
        starting::refused_pods_are_told_and_tried_again,
        bad_input::wrong_settings_end_the_operator,
        bad_input::wrong_policies_of_a_job_are_told,
        bad_input::an_unreadable_template_stops_no_pod,
        bad_input::a_wrong_policy_file_holds_its_jobs,
        refusals::contradictions_are_refused_with_their_reason,
        refusals::changes_are_held_to_the_rules,
        install::the_rights_in_one_namespace_suffice,
    ];
    // These watch all namespaces or change what all share.
    all.extend(alone(cases![
        guide::every_manifest_is_accepted,
        nodes::a_node_that_is_to_go_is_left_in_time,
        nodes::a_node_where_workers_fail_is_avoided,
        nodes::preemption_takes_workers_down_to_the_minimum,
        outage::the_api_server_restarts,
        install::plain_manifests_are_accepted,
        install::the_chart_installs,
        install::the_rights_suffice,
    ]));
    if std::env::args().any(|a| a == "--list") {
        for case in &all {
            println!("{}", case.name);
        }
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
