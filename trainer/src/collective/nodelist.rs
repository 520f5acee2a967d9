//! Slurm's short form of host names.

/// The first host of a list such as `node[003-005,010],login1` or `rack[1-2]n[01-04]`; none for a list that is empty or not
/// closed.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while !rest.is_empty() {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].strip_prefix('[') {
            Some(inside) => {
                let (choices, after) = inside.split_once(']')?;
                host.push_str(choices.split([',', '-']).next()?);
                rest = after;
            }
            // the next host begins, or there is none
            None => break,
        }
    }
    Some(host).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_short_list_is_written_out() {
        for (list, host) in [
            ("node003", Some("node003")),
            ("node[003-005,010],login1", Some("node003")),
            ("login1,node[003-005]", Some("login1")),
            ("node[7,9]", Some("node7")),
            ("rack[1-2]n[01-04]", Some("rack1n01")),
            ("n[1-2].cluster.example,other", Some("n1.cluster.example")),
            ("ip-10-0-0-[12-15]", Some("ip-10-0-0-12")),
            ("node[003-", None),
            ("", None),
        ] {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
    }
}
