//! What the doctor says of a sound place and of one that cannot be reached.

use dressage_storage::maintain::{FindingStatus, doctor};
use dressage_storage::{ErrorKind, Lake, S3Settings, Secret, StoreSettings};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_store_is_found_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let lake = Lake::init(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let findings = doctor(&lake).await;
    assert!(findings.iter().all(|f| f.status != FindingStatus::Failed), "{findings:#?}");
    assert!(findings.iter().any(|f| f.check == "conditional writes" && f.status == FindingStatus::Ok));
    let left = std::fs::read_dir(folder.path().join("_race")).map(Iterator::count).unwrap_or(0);
    assert_eq!(left, 0, "the doctor leaves nothing behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_does_not_answer_is_unavailable_and_no_secret_is_told() {
    let settings = StoreSettings {
        uri: "s3://bucket/store".into(),
        s3: S3Settings {
            // a port that nothing listens on
            endpoint: Some("http://127.0.0.1:9".into()),
            access_key_id: Some("id".into()),
            secret_access_key: Secret::new("very-secret-value"),
            allow_http: true,
            ..S3Settings::default()
        },
        retry_timeout_ms: 1_000,
        ..StoreSettings::default()
    };
    let error = Lake::open(settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(!text.contains("very-secret-value"), "{text}");
}

#[tokio::test]
async fn plain_http_is_refused_unless_asked_for() {
    let settings = StoreSettings {
        uri: "s3://bucket/store".into(),
        s3: S3Settings { endpoint: Some("http://127.0.0.1:9".into()), ..S3Settings::default() },
        ..StoreSettings::default()
    };
    let error = Lake::open(settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("allow_http"), "{error}");
}
