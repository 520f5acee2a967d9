//! One signed S3 request over a plain socket: enough to make a bucket and to ask the server a question that no
//! client library stands between.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use chrono::Utc;

use crate::sigv4::{Credentials, Signed, authorization, sha256_hex};

/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The region that every test uses; the servers here do not care.
pub(crate) const REGION: &str = "us-east-1";

/// One request.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// `GET`, `PUT`, …
    pub method: &'a str,
    /// Path, percent-encoded.
    pub path: &'a str,
    /// Query without the question mark.
    pub query: &'a str,
    /// Headers besides the ones that signing needs.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// What the server said.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The bytes after the head (a chunked body is left as it came).
    pub body: Vec<u8>,
}

/// Sends one request, signed where credentials are given, and reads the answer to its end.
///
/// # Errors
/// When the server cannot be reached or does not speak HTTP.
pub fn send(server: SocketAddr, credentials: Option<&Credentials>, request: &Request<'_>) -> Result<Answer> {
    let payload_hash = sha256_hex(request.body);
    let timestamp = Utc::now().format("%Y%m%dT%H%M%SZ").to_string();
    let mut headers = vec![("host".to_owned(), server.to_string())];
    headers.extend(request.headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    if let Some(credentials) = credentials {
        headers.push(("x-amz-content-sha256".to_owned(), payload_hash.clone()));
        headers.push(("x-amz-date".to_owned(), timestamp.clone()));
        let signed = Signed {
            method: request.method,
            path: request.path,
            query: request.query,
            payload_hash: &payload_hash,
            timestamp: &timestamp,
            region: REGION,
        };
        headers.push(("authorization".to_owned(), authorization(credentials, &signed, &headers)?));
    }
    let question = if request.query.is_empty() { "" } else { "?" };
    let mut head = format!("{} {}{question}{} HTTP/1.1\r\n", request.method, request.path, request.query);
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", request.body.len()));

    let mut socket =
        TcpStream::connect_timeout(&server, TIMEOUT).with_context(|| format!("no answer from {server}"))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.write_all(head.as_bytes())?;
    socket.write_all(request.body)?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).with_context(|| format!("{server} broke off its answer"))?;
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").context("an answer without a complete head")?;
    let status = std::str::from_utf8(&bytes[..end])
        .ok()
        .and_then(|head| head.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .context("an answer without a status")?;
    Ok(Answer { status, body: bytes.split_off(end + 4) })
}
