//! One contract, four stores: memory, a folder, a real S3 server, and that server on a bad day.

mod contract;
mod rows;

use std::future::Future;

use anyhow::Result;
use dressage_rig::{FaultPlan, FaultProxy, S3Place, Seed, Weed};
use dressage_storage::{S3Settings, Secret, StoreSettings};

pub(crate) fn on_s3(place: &S3Place) -> StoreSettings {
    StoreSettings {
        s3: S3Settings {
            endpoint: Some(place.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            access_key_id: Some(place.credentials.access_key_id.clone()),
            secret_access_key: Secret::new(place.credentials.secret_access_key.clone()),
            allow_http: true,
            ..S3Settings::default()
        },
        ..StoreSettings::at(place.uri.clone())
    }
}

fn hold<F: Future<Output = Result<()>>>(clause: impl FnOnce() -> F + Send + 'static) {
    // A thread of its own with a stack as deep as these futures need in a debug build.
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(clause())
    });
    let outcome = thread.expect("a thread").join();
    outcome.expect("the clause panicked").expect("the contract holds");
}

/// Each clause over each store.
macro_rules! contract {
    ($($clause:ident),* $(,)?) => {
        mod in_memory {
            $(#[test] fn $clause() {
                let settings = super::StoreSettings::at(concat!("memory://", stringify!($clause)));
                super::hold(|| super::contract::$clause(settings));
            })*
        }
        mod in_a_folder {
            $(#[test] fn $clause() {
                let dir = tempfile::tempdir().expect("a folder");
                let settings = super::StoreSettings::at(dir.path().join("store").display().to_string());
                super::hold(|| super::contract::$clause(settings));
            })*
        }
        mod on_s3 {
            $(#[test] fn $clause() {
                let settings = super::on_s3(&super::Weed::shared().place("contract"));
                super::hold(|| super::contract::$clause(settings));
            })*
        }
        mod on_s3_on_a_bad_day {
            $(#[test] fn $clause() {
                let weed = super::Weed::shared();
                let plan = super::FaultPlan::bad_day(&super::Seed::of_run(stringify!($clause)));
                let proxy = super::FaultProxy::start(weed.address(), weed.credentials(), plan).expect("starts");
                let place = weed.place("contract-bad-day").through(&proxy.endpoint());
                let settings = super::on_s3(&place);
                super::hold(|| super::contract::$clause(settings));
                assert!(proxy.counts().faults() > 0, "the day was fair: {:?}", proxy.counts());
            })*
        }
    };
}

contract! {
    a_store_is_made_once_and_found_again,
    what_is_read_is_what_was_written,
    nothing_is_visible_before_its_commit,
    a_pinned_reader_is_untouched,
    many_writers_lose_and_double_nothing,
    payload_that_is_not_asked_for_is_not_read,
    a_tagged_snapshot_survives_collection,
    leftovers_are_removed_and_nothing_else,
}

/// The suite that `dressage-storage` runs on memory and on a folder, on the server, too.
#[test]
fn the_suite_of_storage_holds_on_s3() {
    let settings = on_s3(&Weed::shared().place("suite"));
    hold(move || async move {
        for check in dressage_storage::conformance::CHECKS {
            let outcome = dressage_storage::conformance::run(check, &settings).await;
            outcome.map_err(|error| anyhow::anyhow!("{check}: {error}"))?;
        }
        Ok(())
    });
}
