//! A plan as data.

use super::*;
use crate::assembly::plan_view::PlanView;
use piecewise_backend::cuda::{Nvrtc, library_dirs};

#[path = "../../../tests/support/skip.rs"]
mod skip;

/// The view of the library is what `piecewise inspect --json` prints.
#[test]
fn a_plan_is_data_without_a_device() {
    let planned = tiny().device("cuda:sm_90a".parse().unwrap()).plan().unwrap();
    let plan = PlanView::of(&planned).unwrap();
    let stitch = planned.stitch().unwrap();
    assert_eq!((plan.pieces, plan.steps.len()), (stitch.piece_count(), stitch.steps.len()));
    assert_eq!(plan.unique.len(), plan.unique_pieces + usize::from(plan.split_ops > 0));
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["arena"]["bytes"], planned.module().layout().unwrap().bytes);
    assert!(plan.images.is_empty() && plan.unique.iter().all(|unique| unique.sizes.is_empty()));
    let stopped = tiny().pipeline("canonicalize").plan().unwrap();
    let error = PlanView::of(&stopped).unwrap_err().to_string();
    assert!(error.contains("has no plan"), "{error}");
    if let Err(error) = Nvrtc::open(&library_dirs(&[]), None) {
        return skip::skipped("PIECEWISE_REQUIRE_NVRTC", error);
    }
    let lowered = PlanView::lowered(&planned).unwrap();
    assert!(lowered.unique.iter().all(|unique| !unique.sizes.is_empty() && unique.error.is_none()));
    let launches = lowered.unique.iter().flat_map(|unique| &unique.sizes).flat_map(|s| &s.launches);
    let digests: Vec<_> = lowered.images.iter().map(|image| &image.digest).collect();
    assert!(!digests.is_empty() && launches.into_iter().all(|l| digests.contains(&&l.image)));
    for image in lowered.images.iter().filter(|image| image.listing.kind == "kernel") {
        let of = image.listing.resources.unwrap();
        assert!(of.registers > 0 && of.blocks_of_multiprocessor > Some(0), "{image:?}");
        assert!(of.occupancy_percent <= Some(100) && of.limited_by.is_some(), "{image:?}");
    }
    for size in lowered.unique.iter().flat_map(|unique| &unique.sizes) {
        assert!(size.first.len() <= size.launches.len(), "{size:?}");
        for first in &size.first {
            assert!(!first.why.is_empty() && !first.others.contains(&first.way), "{first:?}");
        }
    }
    let reasons = lowered.unique.iter().flat_map(|unique| &unique.sizes).flat_map(|s| &s.first);
    assert!(reasons.clone().any(|first| first.why.contains("rows, ")), "no product says why");
    assert!(
        reasons.clone().any(|first| first.why.contains("absorbs")),
        "nothing is absorbed at a row"
    );
}
