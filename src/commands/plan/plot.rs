//! Histograms of advantages as a picture: one panel an estimator, over one common axis.

use std::path::Path;

use anyhow::Result;

use crate::picture::{self, Canvas, FAINT, INK, SERIES, WIDTH};

/// One estimator's histogram.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    pub(super) counts: Vec<u64>,
}

const PANEL: u32 = 150;
const TITLE: u32 = 28;
const MARGIN: u32 = 40;
const AXIS: u32 = 40;

/// Draws to a file; its ending says how.
pub(super) fn write(file: &Path, range: (f64, f64), series: &[Series<'_>]) -> Result<()> {
    let height = series.len() as u32 * (PANEL + TITLE) + AXIS + TITLE;
    picture::write(file, height, |canvas| draw(canvas, range, series))
}

fn draw(canvas: &mut dyn Canvas, (low, high): (f64, f64), series: &[Series<'_>]) {
    let plot_width = WIDTH - 2 * MARGIN;
    let at = |share: f64| MARGIN + (share * f64::from(plot_width)) as u32;
    canvas.text(MARGIN, 10, "samples by advantage");
    for (nth, one) in series.iter().enumerate() {
        let top = TITLE + nth as u32 * (PANEL + TITLE);
        let most = one.counts.iter().copied().max().unwrap_or(0).max(1);
        let total: u64 = one.counts.iter().sum();
        canvas.text(MARGIN, top + 8, &format!("{}  ({total} samples, at most {most} a bar)", one.name));
        let base = top + TITLE + PANEL;
        let step = 1.0 / one.counts.len().max(1) as f64;
        for (bin, &n) in one.counts.iter().enumerate() {
            let (left, right) = (at(bin as f64 * step), at((bin + 1) as f64 * step));
            // what is there at all is seen
            let height = ((n as f64 / most as f64) * f64::from(PANEL - 10)).round().max(f64::from(u32::from(n > 0)));
            let height = height as u32;
            canvas.rectangle(
                left,
                base - height,
                (right - left).saturating_sub(1).max(1),
                height,
                SERIES[nth % SERIES.len()],
            );
        }
        canvas.rectangle(MARGIN, base, plot_width, 1, FAINT);
        if low < 0.0 && high > 0.0 {
            canvas.rectangle(at(-low / (high - low)), top + TITLE, 1, PANEL, FAINT);
        }
    }
    let base = TITLE + series.len() as u32 * (PANEL + TITLE);
    for nth in 0..=4 {
        let share = f64::from(nth) / 4.0;
        let label = format!("{:.3}", low + share * (high - low));
        let half = label.len() as u32 * 4;
        canvas.rectangle(at(share), base, 1, 6, INK);
        canvas.text(at(share).saturating_sub(half).min(WIDTH - 2 * half), base + 12, &label);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn series() -> Vec<Series<'static>> {
        vec![Series { name: "grpo", counts: vec![0, 3, 1] }, Series { name: "a<b>.sql", counts: vec![4, 0, 0] }]
    }

    #[test]
    fn an_svg_has_a_panel_for_each_estimator_and_escapes_their_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.svg");
        write(&file, (-1.0, 1.0), &series()).expect("drawn");
        let text = std::fs::read_to_string(file).expect("there");
        assert!(text.contains("grpo  (4 samples") && text.contains("a&lt;b&gt;.sql"), "{text}");
        assert_eq!(text.matches("fill=\"#1f77b4\"").count(), 3);
    }

    #[test]
    fn a_png_holds_as_many_pixels_as_its_header_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.PNG");
        write(&file, (-1.0, 1.0), &series()).expect("drawn");
        let bytes = std::fs::read(file).expect("there");
        assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (width, height) = (number(16), number(20));
        assert_eq!(width, WIDTH);
        let length = number(33) as usize;
        assert_eq!(&bytes[37..41], b"IDAT");
        let mut pixels = Vec::new();
        flate2::read::ZlibDecoder::new(&bytes[41..41 + length]).read_to_end(&mut pixels).expect("inflates");
        assert_eq!(pixels.len(), (height * (1 + 3 * width)) as usize);
        assert!(pixels.chunks(3).any(|p| p == SERIES[0]));
    }

    #[test]
    fn another_ending_is_refused() {
        assert!(write(Path::new("a.jpg"), (-1.0, 1.0), &series()).is_err());
    }
}
