//! Histograms of advantages as a picture: one panel an estimator, over one common axis. SVG for pages, PNG for chats.
//!
//! Drawn with rectangles and fixed-width text only, so that both look alike and neither needs a font on the machine.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use font8x8::{BASIC_FONTS, UnicodeFonts};

use super::compare::unknown_ending;
use crate::destination::Destination;

/// One estimator's histogram.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    pub(super) counts: Vec<u64>,
}

type Rgb = [u8; 3];

const WIDTH: u32 = 880;
const PANEL: u32 = 150;
const TITLE: u32 = 28;
const MARGIN: u32 = 40;
const AXIS: u32 = 40;
const BACKGROUND: Rgb = [255, 255, 255];
const INK: Rgb = [40, 40, 40];
const FAINT: Rgb = [200, 200, 200];
const BARS: [Rgb; 4] = [[31, 119, 180], [214, 104, 24], [44, 140, 60], [148, 84, 160]];

/// What can be drawn on.
trait Canvas {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, color: Rgb);
    /// Text of eight-pixel characters with its upper left corner here.
    fn text(&mut self, x: u32, y: u32, text: &str);
}

/// Draws to a file; its ending says how.
pub(super) fn write(file: &Path, range: (f64, f64), series: &[Series<'_>]) -> Result<()> {
    let height = series.len() as u32 * (PANEL + TITLE) + AXIS + TITLE;
    let ending = file.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let bytes = match ending.as_str() {
        "svg" => {
            let mut canvas = Svg::new(height);
            draw(&mut canvas, range, series);
            canvas.finish().into_bytes()
        }
        "png" => {
            let mut canvas = Raster::new(height);
            draw(&mut canvas, range, series);
            canvas.finish()?
        }
        _ => return Err(unknown_ending(file)),
    };
    let mut out = Destination::create_binary(file)?;
    let written = out.write_all(&bytes).map_err(Into::into);
    out.witness().judge(written)?;
    out.keep().map(drop)
}

fn draw(canvas: &mut impl Canvas, (low, high): (f64, f64), series: &[Series<'_>]) {
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
                BARS[nth % BARS.len()],
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

/// SVG as text.
struct Svg {
    out: String,
}

impl Svg {
    fn new(height: u32) -> Self {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"monospace\" font-size=\"13\">"
        );
        let mut svg = Self { out };
        svg.rectangle(0, 0, WIDTH, height, BACKGROUND);
        svg
    }

    fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

impl Canvas for Svg {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, [r, g, b]: Rgb) {
        // writing to a String cannot fail
        let _ = writeln!(
            self.out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{r:02x}{g:02x}{b:02x}\"/>"
        );
    }

    fn text(&mut self, x: u32, y: u32, text: &str) {
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let [r, g, b] = INK;
        let _ = writeln!(
            self.out,
            "<text x=\"{x}\" y=\"{}\" fill=\"#{r:02x}{g:02x}{b:02x}\" xml:space=\"preserve\">{escaped}</text>",
            y + 9
        );
    }
}

/// Pixels, row by row.
struct Raster {
    pixels: Vec<Rgb>,
    height: u32,
}

impl Raster {
    fn new(height: u32) -> Self {
        Self { pixels: vec![BACKGROUND; (WIDTH * height) as usize], height }
    }

    /// The picture as PNG: one header, one compressed block of rows, one end mark.
    fn finish(self) -> Result<Vec<u8>> {
        let mut rows = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in self.pixels.chunks(WIDTH as usize) {
            // filter 0: bytes as they are
            rows.write_all(&[0])?;
            rows.write_all(row.as_flattened())?;
        }
        let mut header = Vec::with_capacity(13);
        header.extend(WIDTH.to_be_bytes());
        header.extend(self.height.to_be_bytes());
        // eight bits a channel, true colour, the one compression and filter there is, not interlaced
        header.extend([8, 2, 0, 0, 0]);
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        chunk(&mut out, *b"IHDR", &header);
        chunk(&mut out, *b"IDAT", &rows.finish()?);
        chunk(&mut out, *b"IEND", &[]);
        Ok(out)
    }
}

fn chunk(out: &mut Vec<u8>, name: [u8; 4], data: &[u8]) {
    let mut sum = flate2::Crc::new();
    sum.update(&name);
    sum.update(data);
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(name);
    out.extend(data);
    out.extend(sum.sum().to_be_bytes());
}

impl Canvas for Raster {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, color: Rgb) {
        for row in y..(y + height).min(self.height) {
            for column in x..(x + width).min(WIDTH) {
                self.pixels[(row * WIDTH + column) as usize] = color;
            }
        }
    }

    fn text(&mut self, x: u32, y: u32, text: &str) {
        for (nth, character) in text.chars().enumerate() {
            // the font has ASCII
            let Some(glyph) = BASIC_FONTS.get(character).or_else(|| BASIC_FONTS.get('?')) else { continue };
            for (dy, row) in (0_u32..).zip(glyph) {
                for dx in (0..8).filter(|dx| row & (1 << dx) != 0) {
                    self.rectangle(x + nth as u32 * 8 + dx, y + dy, 1, 1, INK);
                }
            }
        }
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
        assert!(pixels.chunks(3).any(|p| p == BARS[0]));
    }

    #[test]
    fn another_ending_is_refused() {
        assert!(write(Path::new("a.jpg"), (-1.0, 1.0), &series()).is_err());
    }
}
