//! The process's peak resident memory, as the kernel counted it.

/// `VmHWM` of this process in bytes; `None` where there is no `/proc` (it is then reported as null, never as 0).
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_covers_memory_that_was_given_back() {
        let before = super::peak_rss_bytes().expect("linux has /proc");
        let block = vec![1_u8; 64 << 20];
        assert_eq!(block.iter().map(|b| u64::from(*b)).sum::<u64>(), 64 << 20);
        drop(block);
        assert!(super::peak_rss_bytes().expect("linux has /proc") >= before + (32 << 20));
    }
}
