//! The Rust side of `shim/shim.cpp`.

use std::ffi::{CStr, c_char, c_int};

use tch::{Device, Tensor};
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::torch_error::TorchError;

unsafe extern "C" {
    pub(super) fn dressage_message_free(message: *mut c_char);
    fn dressage_load_cuda() -> *mut c_char;
    fn dressage_backward(
        outputs: *const *const C_tensor,
        gradients: *const *const C_tensor,
        count: usize,
    ) -> *mut c_char;
    fn dressage_set_gradient(leaf: *const C_tensor, gradient: *const C_tensor) -> *mut c_char;
    fn dressage_storage_release(tensor: *const C_tensor) -> *mut c_char;
    fn dressage_storage_allocate(tensor: *const C_tensor) -> *mut c_char;
    fn dressage_fused_adamw(
        parameters: *const *const C_tensor,
        gradients: *const *const C_tensor,
        first: *const *const C_tensor,
        second: *const *const C_tensor,
        steps: *const *const C_tensor,
        count: usize,
        learning_rate: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
    ) -> *mut c_char;
    fn dressage_global_norm(tensors: *const *const C_tensor, count: usize, norm: *mut *mut C_tensor) -> *mut c_char;
    fn dressage_scale(tensors: *const *const C_tensor, count: usize, factor: *const C_tensor) -> *mut c_char;
    fn dressage_rng_state(device_index: c_int, state: *mut *mut C_tensor) -> *mut c_char;
    fn dressage_rng_set_state(device_index: c_int, state: *const C_tensor) -> *mut c_char;
    fn dressage_device_memory(device_index: c_int, current_bytes: *mut i64, peak_bytes: *mut i64) -> *mut c_char;
    fn dressage_device_memory_reset(device_index: c_int) -> *mut c_char;
}

/// What a shim function says went wrong, if something did.
pub(super) fn failure(message: *mut c_char) -> Option<String> {
    if message.is_null() {
        return None;
    }
    // SAFETY: not null, so it is a terminated string that the shim allocated for us
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: given back once, to the allocator it came from
    unsafe { dressage_message_free(message) };
    Some(text)
}

/// A shim function's answer as a result.
fn checked(message: *mut c_char) -> Result<()> {
    failure(message).map_or(Ok(()), |text| Err(TorchError::of_text(&text).into()))
}

fn pointers(tensors: &[Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(Tensor::as_ptr).collect()
}

/// Loads the CUDA half of libtorch, once, where there is one; says what the loader said where there is none. To be called
/// before CUDA devices are counted.
pub(crate) fn load_cuda() -> std::result::Result<(), String> {
    static LOADED: std::sync::OnceLock<std::result::Result<(), String>> = std::sync::OnceLock::new();
    // SAFETY: no pointers; the library's own initialisers run once
    LOADED.get_or_init(|| checked(unsafe { dressage_load_cuda() }).map_err(|error| error.to_string())).clone()
}

/// Backward from several outputs, with a gradient for each; adds to `grad` of the leaves behind them.
pub(crate) fn backward(outputs: &[Tensor], gradients: &[Tensor]) -> Result<()> {
    same_count("gradients of outputs", outputs.len(), gradients.len())?;
    let (outputs, gradients) = (pointers(outputs), pointers(gradients));
    // SAFETY: both lists have `count` live tensors, which the shim only borrows
    checked(unsafe { dressage_backward(outputs.as_ptr(), gradients.as_ptr(), outputs.len()) })
}

/// Puts a gradient on a leaf, or takes it away with its memory.
pub(crate) fn set_gradient(leaf: &Tensor, gradient: Option<&Tensor>) -> Result<()> {
    let gradient = gradient.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: a live tensor, and one that is live or null
    checked(unsafe { dressage_set_gradient(leaf.as_ptr(), gradient) })
}

/// Gives the memory of a whole tensor's numbers back; shape, gradient and graphs stay. Nobody may read or write it until
/// [`allocate_storage`]: libtorch does not always look whether there is memory.
pub(crate) fn release_storage(tensor: &Tensor) -> Result<()> {
    // SAFETY: one live tensor; `Model` gives nobody a handle to one that it releases
    checked(unsafe { dressage_storage_release(tensor.as_ptr()) })
}

/// Allocates the numbers of a released tensor anew, with no values yet, also for the graphs that hold on to it.
pub(crate) fn allocate_storage(tensor: &Tensor) -> Result<()> {
    // SAFETY: one live tensor
    checked(unsafe { dressage_storage_allocate(tensor.as_ptr()) })
}

/// The numbers of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AdamwStep {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) eps: f64,
}

/// One fused AdamW step in place. `first` and `second` are the moments, shaped like the parameters; `steps` are f32
/// scalars, one a parameter, counted up by this call.
pub(crate) fn fused_adamw(
    parameters: &[Tensor],
    gradients: &[Tensor],
    first: &[Tensor],
    second: &[Tensor],
    steps: &[Tensor],
    numbers: AdamwStep,
) -> Result<()> {
    for list in [gradients, first, second, steps] {
        same_count("tensors of an optimiser step", parameters.len(), list.len())?;
    }
    let (parameters, gradients) = (pointers(parameters), pointers(gradients));
    let (first, second, steps) = (pointers(first), pointers(second), pointers(steps));
    // SAFETY: all lists have `count` live tensors; the shim changes their contents, not the handles
    checked(unsafe {
        dressage_fused_adamw(
            parameters.as_ptr(),
            gradients.as_ptr(),
            first.as_ptr(),
            second.as_ptr(),
            steps.as_ptr(),
            parameters.len(),
            numbers.learning_rate,
            numbers.beta1,
            numbers.beta2,
            numbers.weight_decay,
            numbers.eps,
        )
    })
}

/// The 2-norm over all tensors together: an f32 scalar on their device, which nobody has waited for yet.
pub(crate) fn global_norm(tensors: &[Tensor]) -> Result<Tensor> {
    let pointers = pointers(tensors);
    let mut norm = std::ptr::null_mut();
    // SAFETY: `count` live tensors, and a place for one new handle
    checked(unsafe { dressage_global_norm(pointers.as_ptr(), pointers.len(), &mut norm) })?;
    // SAFETY: on success the shim wrote an owned handle
    Ok(unsafe { Tensor::from_ptr(norm) })
}

/// Multiplies every tensor in place with a scalar tensor.
pub(crate) fn scale(tensors: &[Tensor], factor: &Tensor) -> Result<()> {
    let pointers = pointers(tensors);
    // SAFETY: `count` live tensors and one more
    checked(unsafe { dressage_scale(pointers.as_ptr(), pointers.len(), factor.as_ptr()) })
}

/// The state of one device's random generator, as libtorch keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RngState(pub Vec<u8>);

impl RngState {
    /// The state of a device's generator now.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] for a device that this machine does not have.
    pub fn of(device: Device) -> Result<Self> {
        let mut state = std::ptr::null_mut();
        // SAFETY: a place for one new handle
        checked(unsafe { dressage_rng_state(index_of(device)?, &mut state) })?;
        // SAFETY: on success the shim wrote an owned handle
        let state = unsafe { Tensor::from_ptr(state) };
        let mut bytes = vec![0; state.numel()];
        state.f_copy_data_u8(&mut bytes, state.numel())?;
        Ok(Self(bytes))
    }

    /// Puts a device's generator into this state.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] for bytes that are no state of that device's generator.
    pub fn restore(&self, device: Device) -> Result<()> {
        let state = Tensor::f_from_slice(&self.0)?;
        // SAFETY: one live tensor
        checked(unsafe { dressage_rng_set_state(index_of(device)?, state.as_ptr()) })
    }
}

/// Begins the random numbers of all devices anew: [`crate::Model::random`] after the same seed gives the same weights.
pub fn seed(seed: i64) {
    tch::manual_seed(seed);
}

/// Bytes that an accelerator's allocator has given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Now.
    pub current_bytes: i64,
    /// At most, since the start or the last [`reset_device_memory`].
    pub peak_bytes: i64,
}

/// Memory in use on an accelerator; none for the CPU, where the operating system knows (`VmHWM`).
///
/// # Errors
///
/// [`Error::Torch`] for a device that this machine does not have.
pub fn device_memory(device: Device) -> Result<Option<DeviceMemory>> {
    let index = index_of(device)?;
    if index < 0 {
        return Ok(None);
    }
    let mut memory = DeviceMemory { current_bytes: 0, peak_bytes: 0 };
    // SAFETY: two places for a number each
    checked(unsafe { dressage_device_memory(index, &mut memory.current_bytes, &mut memory.peak_bytes) })?;
    Ok(Some(memory))
}

/// Lets the peak of [`device_memory`] begin anew. Does nothing on the CPU.
///
/// # Errors
///
/// [`Error::Torch`] for a device that this machine does not have.
pub fn reset_device_memory(device: Device) -> Result<()> {
    let index = index_of(device)?;
    if index < 0 {
        return Ok(());
    }
    // SAFETY: no pointers
    checked(unsafe { dressage_device_memory_reset(index) })
}

/// −1 for the CPU, as the shim counts.
fn index_of(device: Device) -> Result<c_int> {
    match device {
        Device::Cpu => Ok(-1),
        Device::Cuda(index) => c_int::try_from(index).map_err(|_| Error::Setting {
            setting: "device",
            value: format!("cuda:{index}"),
            problem: "there are not that many devices",
        }),
        other => Err(Error::Setting { setting: "device", value: format!("{other:?}"), problem: "cpu or cuda:N" }),
    }
}

fn same_count(what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::LengthMismatch { what, expected, found }) }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn output_gradients_reach_the_leaves() {
        let x = Tensor::from_slice(&[1f32, 2.0]).set_requires_grad(true);
        let (double, square) = (&x * 2.0, &x * &x);
        backward(&[double, square], &[Tensor::from_slice(&[1f32, 0.0]), Tensor::from_slice(&[0f32, 3.0])])
            .expect("backward");
        assert_eq!(Vec::<f32>::try_from(x.grad()).expect("grad"), [2.0, 12.0]);
    }

    #[test]
    fn a_failure_is_one_line() {
        let x = Tensor::from_slice(&[1f32, 2.0]).set_requires_grad(true);
        let y = &x * 2.0;
        let error = backward(&[y], &[Tensor::from_slice(&[1f32, 2.0, 3.0])]).expect_err("shapes differ");
        let text = error.to_string();
        assert!(text.contains("gradient") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_released_tensor_serves_its_graph_once_its_numbers_are_back() {
        let weight = Tensor::from_slice(&[2f32, 3.0]).set_requires_grad(true);
        let x = Tensor::from_slice(&[5f32, 7.0]).set_requires_grad(true);
        let y = &weight * &x;
        release_storage(&weight).expect("release");
        assert_eq!(weight.size(), [2]);
        allocate_storage(&weight).expect("allocate");
        // through another handle, so that the graph does not take it for a change
        weight.data().copy_(&Tensor::from_slice(&[2f32, 3.0]));
        backward(&[y], &[Tensor::from_slice(&[1f32, 1.0])]).expect("backward");
        assert_eq!(Vec::<f32>::try_from(x.grad()).expect("grad"), [2.0, 3.0]);
        assert_eq!(Vec::<f32>::try_from(weight.grad()).expect("grad"), [5.0, 7.0]);
    }

    #[test]
    fn the_norm_is_over_all_tensors_together() {
        let norm = global_norm(&[Tensor::from_slice(&[3f32]), Tensor::from_slice(&[0f32, 4.0])]).expect("norm");
        assert!((norm.double_value(&[]) - 5.0).abs() < 1e-6);
    }

    #[test]
    fn a_restored_generator_repeats_itself() {
        let state = RngState::of(Device::Cpu).expect("state");
        let first = Tensor::rand([4], (Kind::Float, Device::Cpu));
        state.restore(Device::Cpu).expect("restore");
        assert_eq!(first, Tensor::rand([4], (Kind::Float, Device::Cpu)));
        assert!(RngState(vec![1, 2, 3]).restore(Device::Cpu).is_err());
    }

    #[test]
    fn the_cpu_has_no_allocator_statistics() {
        assert_eq!(device_memory(Device::Cpu).expect("cpu"), None);
    }
}
