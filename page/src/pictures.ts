// Pictures that a message takes along.

const kTypes = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/bmp']);
// A request has at most 16 MiB, and base64 takes four bytes for three.
export const kPicturesCharsMax = 15 << 20;
const kFileBytesMax = 4 << 20;
const kSideMax = 2048;

const dataUri = (file: Blob) =>
  new Promise<string>((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

// The picture as a data: URI. One that is large, or of a format that umad does not read, is drawn anew as a JPEG file.
export async function readPicture(file: File): Promise<string> {
  if (kTypes.has(file.type) && file.size <= kFileBytesMax) return dataUri(file);
  let image: ImageBitmap;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name || 'The file'} is not a picture that can be read.`);
  }
  const scale = Math.min(1, kSideMax / Math.max(image.width, image.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  const context = canvas.getContext('2d')!;
  context.fillStyle = '#fff';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return canvas.toDataURL('image/jpeg', 0.9);
}

export const pictureFiles = (data: DataTransfer | null): File[] =>
  [...(data?.files ?? [])].filter((file) => file.type.startsWith('image/'));
