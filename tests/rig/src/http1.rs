//! HTTP/1.1 messages as a proxy needs them: head and body as they came, so that what is passed on is what was signed.

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Heads longer than this are refused.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bodies longer than this are refused: the tests move megabytes.
const BODY_BYTES_MAX: usize = 512 * 1024 * 1024;

/// A request or an answer.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The first line, without its end.
    pub(crate) start: String,
    pub(crate) headers: Vec<(String, String)>,
    /// The body as on the wire: a chunked one keeps its chunk marks.
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// The next request of a connection; none at its end.
    pub(crate) async fn read_request(from: &mut BufReader<TcpStream>) -> Result<Option<Self>> {
        let Some(mut message) = Self::read_head(from).await? else { return Ok(None) };
        message.read_body(from, false).await?;
        Ok(Some(message))
    }

    /// The answer to a request of that method.
    pub(crate) async fn read_answer(from: &mut BufReader<TcpStream>, method: &str) -> Result<Self> {
        loop {
            let mut message = Self::read_head(from).await?.context("the server closed instead of answering")?;
            let status = message.status();
            if (100..200).contains(&status) {
                continue;
            }
            if method != "HEAD" && status != 204 && status != 304 {
                message.read_body(from, true).await?;
            }
            return Ok(message);
        }
    }

    /// Method and target of a request.
    pub(crate) fn target(&self) -> Result<(&str, &str)> {
        let mut words = self.start.split(' ');
        words.next().zip(words.next()).context("a request line without method and target")
    }

    /// Status of an answer; 0 where it has none.
    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The whole message, or its head and the first `body_bytes` of its body.
    pub(crate) async fn write(&self, to: &mut TcpStream, body_bytes: Option<usize>) -> Result<()> {
        let mut out = self.start.clone().into_bytes();
        out.extend_from_slice(b"\r\n");
        for (name, value) in &self.headers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body[..body_bytes.unwrap_or(self.body.len()).min(self.body.len())]);
        to.write_all(&out).await?;
        to.flush().await?;
        Ok(())
    }

    async fn read_head(from: &mut BufReader<TcpStream>) -> Result<Option<Self>> {
        let mut lines = Vec::new();
        let mut total = 0;
        loop {
            let mut line = String::new();
            let n_bytes = from.read_line(&mut line).await?;
            if n_bytes == 0 {
                if lines.is_empty() {
                    return Ok(None);
                }
                bail!("a head that ends in its middle");
            }
            total += n_bytes;
            if total > HEAD_BYTES_MAX {
                bail!("a head of more than {HEAD_BYTES_MAX} bytes");
            }
            let line = line.trim_end_matches(['\r', '\n']).to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let mut lines = lines.into_iter();
        let start = lines.next().context("a head without a first line")?;
        let headers = lines
            .map(|line| {
                let (name, value) =
                    line.split_once(':').with_context(|| format!("a header without a colon: {line}"))?;
                Ok((name.to_owned(), value.trim().to_owned()))
            })
            .collect::<Result<_>>()?;
        Ok(Some(Self { start, headers, body: Vec::new() }))
    }

    async fn read_body(&mut self, from: &mut BufReader<TcpStream>, until_close: bool) -> Result<()> {
        if self.header("transfer-encoding").is_some_and(|coding| coding.to_ascii_lowercase().contains("chunked")) {
            return self.read_chunks(from).await;
        }
        match self.header("content-length").map(str::parse::<usize>) {
            Some(length) => {
                let length = length.context("a content-length that is no number")?;
                if length > BODY_BYTES_MAX {
                    bail!("a body of {length} bytes, more than {BODY_BYTES_MAX}");
                }
                self.body = vec![0; length];
                from.read_exact(&mut self.body).await?;
            }
            None if until_close => {
                from.read_to_end(&mut self.body).await?;
            }
            None => {}
        }
        Ok(())
    }

    async fn read_chunks(&mut self, from: &mut BufReader<TcpStream>) -> Result<()> {
        loop {
            let mut size_line = String::new();
            from.read_line(&mut size_line).await?;
            self.body.extend_from_slice(size_line.as_bytes());
            let digits = size_line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).with_context(|| format!("a chunk size of {digits:?}"))?;
            if self.body.len() + size > BODY_BYTES_MAX {
                bail!("a chunked body of more than {BODY_BYTES_MAX} bytes");
            }
            if size == 0 {
                // Trailers, if any, then the empty line.
                loop {
                    let mut line = String::new();
                    let n_bytes = from.read_line(&mut line).await?;
                    self.body.extend_from_slice(line.as_bytes());
                    if n_bytes == 0 || line.trim_end().is_empty() {
                        return Ok(());
                    }
                }
            }
            let begun = self.body.len();
            self.body.resize(begun + size + 2, 0);
            from.read_exact(&mut self.body[begun..]).await?;
        }
    }
}
