resource "aws_s3_bucket" "checkpoints" {
  #checkov:skip=CKV_AWS_18:Access logs need a second bucket; CloudTrail data events serve those who want them
  #checkov:skip=CKV_AWS_144:A copy in another region doubles the cost; checkpoints can be made again
  #checkov:skip=CKV_AWS_145:SSE-S3 by default, so that machines outside AWS need no right on a key; kms_key_arn changes it
  #checkov:skip=CKV2_AWS_62:Nothing listens to events of this bucket

  bucket        = var.bucket
  force_destroy = var.force_destroy
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "checkpoints" {
  bucket                  = aws_s3_bucket.checkpoints.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  rule {
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_versioning" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "checkpoints" {
  depends_on = [aws_s3_bucket_versioning.checkpoints]
  bucket     = aws_s3_bucket.checkpoints.id

  rule {
    id     = "overwritten-and-abandoned"
    status = "Enabled"

    filter {
      prefix = ""
    }

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}

resource "aws_s3_bucket_policy" "checkpoints" {
  # A policy that is put while the public access block is being set is refused.
  depends_on = [aws_s3_bucket_public_access_block.checkpoints]
  bucket     = aws_s3_bucket.checkpoints.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.checkpoints.arn, "${aws_s3_bucket.checkpoints.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}
