//! Free ports on the loopback, in pairs: SeaweedFS takes a gRPC port 10,000 above each of its HTTP ports.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

use crate::Seed;

/// HTTP ports are drawn from here: their gRPC ports then end below 32,768, where Linux begins to hand out
/// ephemeral ports, so that no outgoing connection sits on one by chance.
const FIRST: u64 = 12_000;
const END: u64 = 22_700;
const GRPC_OFFSET: u16 = 10_000;
const TRIES: usize = 500;

/// `count` ports that are free now, each together with the port 10,000 above it. Somebody may take one before it is
/// used: the caller must be ready to try again with others.
pub(crate) fn free_pairs(count: usize, seed: &mut Seed) -> Result<Vec<u16>> {
    let mut found = Vec::with_capacity(count);
    for _ in 0..TRIES {
        if found.len() == count {
            break;
        }
        let port = (FIRST + seed.below(END - FIRST)) as u16;
        if !found.contains(&port) && is_free(port) && is_free(port + GRPC_OFFSET) {
            found.push(port);
        }
    }
    if found.len() < count {
        bail!("found {} of {count} free port pairs on 127.0.0.1 after {TRIES} tries", found.len());
    }
    Ok(found)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
