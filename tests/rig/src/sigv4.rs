//! AWS Signature Version 4 for S3, by hand: to create a bucket, which the object store client cannot, and to sign a
//! request again after the proxy has taken a header out of it.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// An S3 key pair.
#[derive(Clone)]
pub struct Credentials {
    /// `AWS_ACCESS_KEY_ID`.
    pub access_key_id: String,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret_access_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// What is signed besides the headers.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    /// Path as on the wire, percent-encoded once.
    pub(crate) path: &'a str,
    /// Query as on the wire, without the question mark.
    pub(crate) query: &'a str,
    /// Value of `x-amz-content-sha256`.
    pub(crate) payload_hash: &'a str,
    /// `YYYYMMDDTHHMMSSZ`.
    pub(crate) timestamp: &'a str,
    pub(crate) region: &'a str,
}

/// The value of `Authorization` for that request with these headers signed (names in lower case).
pub(crate) fn authorization(
    credentials: &Credentials,
    request: &Signed<'_>,
    headers: &[(String, String)],
) -> Result<String> {
    let mut headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.trim())).collect();
    headers.sort();
    let names = headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, canonical_query(request.query));
    for (name, value) in &headers {
        writeln!(canonical, "{name}:{value}")?;
    }
    write!(canonical, "\n{names}\n{}", request.payload_hash)?;

    let date = request.timestamp.get(..8).context("a signing time shorter than a date")?;
    let scope = format!("{date}/{}/s3/aws4_request", request.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", request.timestamp, sha256_hex(canonical.as_bytes()));
    let mut key = format!("AWS4{}", credentials.secret_access_key).into_bytes();
    for part in [date, request.region, "s3", "aws4_request"] {
        key = mac(&key, part.as_bytes())?;
    }
    let signature = hex(&mac(&key, to_sign.as_bytes())?);
    Ok(format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        credentials.access_key_id
    ))
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn mac(key: &[u8], message: &[u8]) -> Result<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).context("an HMAC key of a length that HMAC does not take")?;
    mac.update(message);
    Ok(mac.finalize().into_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The pairs sorted, and encoded the one way that both sides agree on whatever the client wrote.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (strict(name), strict(value))
        })
        .collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Percent-decodes and encodes again with AWS's set of unreserved characters.
fn strict(text: &str) -> String {
    let raw = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < raw.len() {
        let escaped = (raw[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        let byte = match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                at += 3;
                byte
            }
            None => {
                at += 1;
                raw[at - 1]
            }
        };
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Credentials, Signed, authorization, canonical_query, sha256_hex};

    /// The worked "GET Bucket (List Objects)" example of the S3 API reference, section "Signature Calculations for
    /// the Authorization Header: Transferring Payload in a Single Chunk".
    #[test]
    fn the_published_example_of_s3_signs_to_the_published_signature() {
        let credentials = Credentials {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        };
        let empty = sha256_hex(b"");
        let request = Signed {
            method: "GET",
            path: "/",
            query: "max-keys=2&prefix=J",
            payload_hash: &empty,
            timestamp: "20130524T000000Z",
            region: "us-east-1",
        };
        let headers = [
            ("Host".to_owned(), "examplebucket.s3.amazonaws.com".to_owned()),
            ("x-amz-content-sha256".to_owned(), empty.clone()),
            ("x-amz-date".to_owned(), "20130524T000000Z".to_owned()),
        ];
        let value = authorization(&credentials, &request, &headers).expect("signs");
        assert!(
            value.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "signed as {value}"
        );
    }

    #[test]
    fn a_query_is_sorted_and_encoded_whatever_way_it_was_written() {
        assert_eq!(canonical_query("prefix=a/b&list-type=2&uploads"), "list-type=2&prefix=a%2Fb&uploads=");
        assert_eq!(canonical_query("prefix=a%2fb&list-type=2"), "list-type=2&prefix=a%2Fb");
    }
}
