"""Small audio files for the tests."""

import numpy as np
import soundfile as sf

from deepunfold.speech._audio import AudioInfo, writer

# Every container that is read, with encodings that keep the samples and some that do not.
KINDS = {
    "wav": ("WAV", "PCM_16"),
    "wav24": ("WAV", "PCM_24"),
    "wav32": ("WAV", "PCM_32"),
    "wav8": ("WAV", "PCM_U8"),
    "float": ("WAV", "FLOAT"),
    "double": ("WAV", "DOUBLE"),
    "ulaw": ("WAV", "ULAW"),
    "adpcm": ("WAV", "IMA_ADPCM"),
    "wavex": ("WAVEX", "PCM_24"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "flac24": ("FLAC", "PCM_24"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "aiff": ("AIFF", "PCM_16"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "alac": ("CAF", "ALAC_16"),
    "nist": ("NIST", "PCM_16"),
}
NAMES = {"WAV": ".wav", "WAVEX": ".wav", "RF64": ".wav", "NIST": ".sph"}


def noise(samples, channels=1, level=0.1, seed=0):
    """White noise, (samples, channels) float32."""
    drawn = np.random.default_rng(seed).standard_normal((samples, channels))
    return np.clip(level * drawn, -0.99, 0.99).astype(np.float32)


def tone(samples, frequency, rate, level=0.3):
    """A sine, (samples,) float32."""
    return (level * np.sin(2 * np.pi * frequency * np.arange(samples) / rate)).astype(np.float32)


def put(path, signal, rate=16000, kind="wav"):
    """Write with soundfile itself, not with what is tested."""
    container, subtype = KINDS[kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    sf.write(path, signal, rate, format=container, subtype=subtype)
    return path


def name_of(kind):
    container = KINDS[kind][0]
    return f"{kind}{NAMES.get(container, '.' + container.lower())}"


def save(path, signal, rate=16000, kind="wav"):
    """Write with the writer that is tested."""
    container, subtype = KINDS[kind]
    with writer(path, AudioInfo(rate, signal.shape[1], len(signal), container, subtype)) as sink:
        sink.write(signal)
    return path
