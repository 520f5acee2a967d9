//! The conformance suite on the kinds of store that need no service.

use dressage_storage::StoreSettings;
use dressage_storage::conformance::{CHECKS, run};

async fn all_on(settings: &StoreSettings) {
    let mut failed = Vec::new();
    for check in CHECKS {
        if let Err(error) = run(check, settings).await {
            failed.push(format!("{check}: {}", chain(error.as_ref())));
        }
    }
    assert!(failed.is_empty(), "{} of {} checks failed:\n{}", failed.len(), CHECKS.len(), failed.join("\n"));
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(inner) = next {
        text.push_str(&format!(": {inner}"));
        next = inner.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    all_on(&StoreSettings::at("memory://conformance")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    // an odd name, as users have them
    let place = folder.path().join("my store %20 ü");
    all_on(&StoreSettings::at(place.to_str().unwrap())).await;
}

/// For a look at a service by hand; the root package's tests start one and run the same suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a service: set DRESSAGE_TEST_S3_URI and the AWS_* variables"]
async fn the_service_in_the_environment_conforms() {
    let uri = std::env::var("DRESSAGE_TEST_S3_URI").unwrap();
    all_on(&StoreSettings::from_env(format!("{}/{}", uri.trim_end_matches('/'), uuid()))).await;
}

fn uuid() -> String {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    format!("conformance-{nanos}")
}
