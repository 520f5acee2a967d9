//! Ranks beside PyTorch: started by its launcher, and in one group with one of its own.

use std::process::{Command, Stdio};

use dressage_trainer::collective::{Collectives, Reduce, Rendezvous};
use tch::Tensor;

use crate::processes::{ONE_RANK, PART, Part, Ranks, free_port, join, options};

pub(crate) const PARTS: &[(&str, Part)] = &[("beside_python", beside_python)];

/// A Python with PyTorch of the version that this crate is built with.
fn python() -> String {
    std::env::var("TORCH_PYTHON").expect("TORCH_PYTHON names a Python with torch")
}

#[test]
#[ignore = "needs a Python with torch, named by TORCH_PYTHON"]
fn torchrun_starts_ranks_that_meet_in_its_own_store() {
    let output = Command::new(python())
        .args(["-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"])
        .args(["--master-port", &free_port().to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(ONE_RANK)
        .envs([(PART, "every_operation"), ("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for said in ["said: 0 of 2", "said: 1 of 2"] {
        assert!(text.contains(said), "no `{said}` in {text}");
    }
}

fn beside_python(rendezvous: &Rendezvous) -> String {
    let group = join(rendezvous, &options()).unwrap();
    let sum = Tensor::from_slice(&[1.5f32, -2.0]);
    group.all_reduce(&sum, Reduce::Sum).unwrap();
    let copied = Tensor::from_slice(&[0i64]);
    group.broadcast(&copied, 0).unwrap();
    format!("{:?} {}", Vec::<f32>::try_from(sum).unwrap(), copied.int64_value(&[0]))
}

#[test]
#[ignore = "needs a Python with torch, named by TORCH_PYTHON"]
fn a_rank_of_pytorch_is_a_rank_like_any_other() {
    let mut pytorch = Command::new(python());
    pytorch.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ranks/pytorch_rank.py"));
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(ONE_RANK).env(PART, "beside_python");
    assert_eq!(Ranks::of(vec![pytorch, own]).said(), ["[11.5, 18.0] 42", "[11.5, 18.0] 42"]);
}
