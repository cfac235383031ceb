//! Goal: promises that crashes alone do not try (see `voltier_sim::trials`).

use voltier_block::KIB;
use voltier_cache::Mode;
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_sim::trials;
use voltier_sim::workload::Profile;

#[test]
fn bits_that_rotted_are_never_served() {
    for seed in 0..4 {
        trials::bit_rot(&Profile::small(&[Mode::WriteBack]), seed);
        trials::bit_rot(&Profile::small(&[Mode::WriteThrough, Mode::WriteBack]), seed);
    }
}

#[test]
fn changes_that_end_late_end_over_nothing_that_came_after_them() {
    for seed in 0..40 {
        voltier_sim::late_changes(seed);
    }
}

#[test]
fn ordered_destaging_keeps_the_origin_at_a_flush() {
    for seed in 0..4 {
        trials::ordered(seed);
    }
}

#[test]
fn ordered_mode_goes_on_over_an_ssd_full_of_clean_lines() {
    for seed in 0..4 {
        trials::full_of_clean_lines(seed);
    }
}

#[test]
fn every_policy_admission_and_line_size_serves_what_it_may() {
    for (number, policy) in PolicyKind::ALL.into_iter().enumerate() {
        for (step, admission) in AdmissionKind::ALL.into_iter().enumerate() {
            let line_bytes = (2 * KIB) << ((number + 2 * step) % 6);
            trials::settings(policy, admission, line_bytes);
        }
    }
}

#[test]
fn what_is_no_cache_of_ours_is_refused_in_a_sentence() {
    trials::refusals();
}
